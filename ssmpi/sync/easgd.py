"""Elastic averaging SGD, S-EASGD and FR-EASGD (Zhang, Choromanska, LeCun, NeurIPS 2015; ShadowSync, arXiv 2003.03477)::

    d   = alpha (w_i - c)          both lines from the old values, so that w_i + c is conserved
    w_i = w_i - d                  on the trainer, by the difference to its snapshot
    c   = c + d                    on the sync PSs, shard by shard

Centralised and asynchronous: a trainer exchanges with the center alone, and waits for no other trainer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from ssmpi.comm.service import Service, say_goodbye
from ssmpi.comm.waiting import wait, wait_all
from ssmpi.sync.base import Peers, Synchronizer

EXCHANGE, FETCH, START = range(3)  # kinds of message; a reply has the asking thread's number as its tag
THREADS = 1000


@dataclass(frozen=True)
class Options:
    """``[sync.easgd]`` has no settings of its own."""


def shards(parameters: int, servers: int) -> list[slice]:
    """Which part of the vector each sync PS holds: contiguous, as equal as can be."""
    edges = [parameters * s // servers for s in range(servers + 1)]
    return [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]


@njit(cache=True, nogil=True)
def pull_center(center: np.ndarray, snapshot: np.ndarray, alpha: float, old: np.ndarray) -> None:
    """old = center; center += alpha (snapshot - center)."""
    a = np.float32(alpha)
    for i in range(center.shape[0]):
        old[i] = center[i]
        center[i] -= a * (center[i] - snapshot[i])


class EASGD(Synchronizer):
    """Exchanges with the center. Several worker threads may do so at once, each through an ``EASGD`` of its own."""

    Options = Options

    def __init__(self, options: object, weights: np.ndarray, peers: Peers, thread: int = 0) -> None:
        super().__init__(options, weights, peers)
        self._thread = thread
        self._servers = range(peers.first_ps, peers.center.size)
        self._shards = shards(weights.size, len(self._servers))
        self._old = np.empty_like(weights)
        if thread == 0 and peers.center.rank == 0:  # every trainer starts equal: the first one says from where
            self._send_all(START, weights)

    def exchange(self, snapshot: np.ndarray, active: bool) -> np.ndarray:
        """The center as it was; the sync PSs move it towards the snapshot by the same d."""
        self._call_all(EXCHANGE, snapshot)
        return self._old

    def close(self) -> None:
        """One last round, so that the center has this trainer's end; nobody waits for this trainer."""
        self.round()

    def model(self) -> np.ndarray:
        """The center, after every trainer's last round."""
        waiting = np.zeros(1, np.float32)
        wait(self.peers.trainers.iallreduce(waiting), self.peers.patience, "the other trainers' last round")
        self._call_all(FETCH, None)
        return self._old.copy()

    def goodbye(self) -> None:
        """Tell the sync PSs that this trainer will not ask again."""
        say_goodbye(self.peers.center, self._servers, self.peers.patience)

    def _call_all(self, kind: int, vector: np.ndarray | None) -> None:
        """Send a request to every sync PS, with its shard of ``vector``, and receive its shard of the center."""
        center = self.peers.center
        replies = [
            center.irecv(self._old[s], r, self._thread) for r, s in zip(self._servers, self._shards, strict=True)
        ]
        self._send_all(kind, vector)
        wait_all(replies, self.peers.patience, "the sync PSs")

    def _send_all(self, kind: int, vector: np.ndarray | None) -> None:
        center, nothing = self.peers.center, np.empty(0, np.float32)
        sends = [
            center.isend(nothing if vector is None else vector[s], r, kind * THREADS + self._thread)
            for r, s in zip(self._servers, self._shards, strict=True)
        ]
        wait_all(sends, self.peers.patience, "the sync PSs")


class Center:
    """What a sync PS holds and does: its shard of the center, moved by each exchange. Torch is not needed here."""

    def __init__(self, alpha: float, service: Service) -> None:
        self._alpha, self._service = alpha, service
        self.values: np.ndarray | None = None
        self._early: list[tuple[int, int, np.ndarray]] = []
        nothing = np.empty(0, np.float32)
        pull_center(nothing, nothing, 0.0, nothing)  # compiles now, not in the first round

    def handle(self, source: int, tag: int, payload: np.ndarray) -> None:
        """Answer one request; those before the first trainer's START wait for it."""
        kind, thread = divmod(tag, THREADS)
        if kind == START:
            self.values = payload.view(np.float32).copy()
            early, self._early = self._early, []
            for message in early:
                self.handle(*message)
        elif self.values is None:
            self._early.append((source, tag, payload.copy()))
        else:
            buffer = self._service.buffer(self.values.nbytes)
            old = buffer.view(np.float32)
            if kind == EXCHANGE:
                pull_center(self.values, payload.view(np.float32), self._alpha, old)
            else:
                old[:] = self.values
            self._service.reply(source, thread, buffer)
