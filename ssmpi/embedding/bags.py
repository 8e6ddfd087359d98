"""Features with several ids: each PS sums its rows of a bag before it answers, so pooled vectors are sent, not rows.

Criteo has one id per feature and goes through ``client.Lookups``; this is the general case of the same messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from ssmpi.comm.waiting import WaitOptions, wait_all
from ssmpi.core.protocols import MPIRequest
from ssmpi.core.topology import Role
from ssmpi.core.traffic import Link
from ssmpi.embedding import wire
from ssmpi.embedding.client import raise_bad_id
from ssmpi.embedding.placement import Placement

if TYPE_CHECKING:
    from ssmpi.comm.messages import Conversation


class BagLookups:
    """Pull and push of pooled bags by one thread.

    If a table is split over several PSs, a bag is the sum of one partial sum per PS, so its last bits depend on the
    placement; the rows themselves do not. An empty bag is zero.
    """

    def __init__(self, conversation: Conversation, placement: Placement, width: int, thread: int) -> None:
        self._conversation, self._placement = conversation, placement
        self._servers = conversation.directory.ranks_of(Role.EMBEDDING_PS)
        self._width, self._thread = width, thread
        self._waiting = WaitOptions()
        self._in_flight: list[tuple[MPIRequest, np.ndarray]] = []

    def pull(self, values: np.ndarray, offsets: np.ndarray, pooling: Literal["sum", "mean"]) -> np.ndarray:
        """Pooled rows float32 (bags, width) for values int32 (ids,), offsets int64 (bags + 1,), bag k of feature
        k mod F.
        """
        pooled = np.zeros((offsets.size - 1, self._width), np.float32)
        requests, arrived = [], []
        for server, bags, lengths, rows in self._route(values, offsets):
            part = np.empty((bags.size, self._width), np.float32)
            message = wire.bags(lengths, rows)
            requests += [
                self._conversation.irecv(part, server, self._thread, Link.EMBEDDING_PULL),
                self._conversation.isend(message, server, wire.tag(wire.PULL_BAGS, self._thread), Link.EMBEDDING_PULL),
            ]
            arrived.append((bags, part, message))
        wait_all(requests, self._waiting, "the embedding PSs")
        for bags, part, _ in arrived:
            pooled[bags] += part
        return pooled * _weights(offsets, pooling)

    def push(
        self,
        bags: tuple[np.ndarray, np.ndarray],
        gradients: np.ndarray,
        pooling: Literal["sum", "mean"],
        factor: float = 1.0,
    ) -> None:
        """Send gradients float32 (bags, width) of the pooled rows of ``bags = (values, offsets)``."""
        wait_all([request for request, _ in self._in_flight], self._waiting, "the embedding PSs (to take a push)")
        self._in_flight = []
        scaled = gradients * _weights(bags[1], pooling)
        for server, owned, lengths, rows in self._route(*bags):
            head = np.array([factor], np.float32).view(np.int32)
            body = wire.bags(lengths, rows)
            message = np.concatenate([head, body, scaled[owned].reshape(-1).view(np.int32)])
            request = self._conversation.isend(
                message, server, wire.tag(wire.PUSH_BAGS, self._thread), Link.EMBEDDING_PUSH
            )
            self._in_flight.append((request, message))

    def _route(self, values: np.ndarray, offsets: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """For each PS with rows of these bags: its rank, those bags, the number of rows of each, and the rows in bag
        order.
        """
        plan = self._placement
        bag_of = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        feature = bag_of % len(plan.cardinalities)
        bad = np.flatnonzero((values < 0) | (values >= plan.limits[feature]))
        if bad.size:
            flat = np.zeros(offsets.size - 1, np.int64)
            flat[bag_of[bad[0]]] = values[bad[0]]
            raise_bad_id(flat, int(bag_of[bad[0]]), plan)
        part = values % plan.strides[feature]
        owner = plan.owners[feature, part]
        rows = (plan.bases[feature, part] + values // plan.strides[feature]).astype(np.int32)
        routes = []
        for server in np.unique(owner):
            mine = owner == server
            bags, lengths = np.unique(bag_of[mine], return_counts=True)
            routes.append((self._servers[server], bags, lengths.astype(np.int32), rows[mine]))
        return routes


def _weights(offsets: np.ndarray, pooling: Literal["sum", "mean"]) -> np.ndarray:
    """The factor of each bag's sum, float32 (bags, 1)."""
    lengths = np.diff(offsets)
    weights = np.ones(lengths.size) if pooling == "sum" else 1.0 / np.maximum(lengths, 1)
    return weights.astype(np.float32)[:, None]
