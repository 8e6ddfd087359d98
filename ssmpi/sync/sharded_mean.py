"""Exchanges among trainers that own a shard each: see ``mean_mirrors``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ssmpi import compress
from ssmpi.runtime.mpi.waiting import WaitOptions, wait_all
from ssmpi.sync.codecs import count_entries
from ssmpi.sync.mean_mirrors import WEIGHT, MeanMirrors

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation

REPLICA, MEAN, PENDING = range(3)  # tags


class ShardedMean:
    """All trainers of a conversation; ``mirrors`` are this one's. A message to an owner is float32 1 if the sender
    still trains, else 0, then a payload; a message from an owner is a payload.
    """

    def __init__(self, trainers: Conversation, waiting: WaitOptions, mirrors: MeanMirrors) -> None:
        self._trainers, self._waiting, self.mirrors = trainers, waiting, mirrors
        largest = max(part.stop - part.start for parts in mirrors.shards for part in parts)
        self._buffers = [np.empty(WEIGHT + compress.most_bytes(largest), np.uint8) for _ in range(trainers.size)]
        self._others = [(trainers.rank + k) % trainers.size for k in range(1, trainers.size)]

    def average(self, snapshot: np.ndarray, fragment: int, active: bool) -> bool:
        """Send a fragment of ``snapshot`` float32 (parameters,) and receive the mean of the active trainers, both
        through the mirrors; False, and no mean, if none is active. Every trainer calls it.
        """
        mirrors, traffic = self.mirrors, self._trainers.meter.traffic
        payloads, weight = mirrors.replica.send(snapshot, fragment), np.array([active], np.float32).view(np.uint8)
        count_entries(payloads, traffic)
        self._swap([np.concatenate([weight, payload]) for payload in payloads], REPLICA)
        counts = [active] * self._trainers.size
        for other in self._others:
            counts[other] = bool(self._buffers[other][:WEIGHT].view(np.float32)[0])
            mirrors.receive_replica(other, _payload(self._buffers[other][WEIGHT:]), fragment)
        if not any(counts):
            return False
        answer = mirrors.answer(counts, fragment)
        count_entries([answer], traffic)
        self._swap([answer] * self._trainers.size, MEAN)
        for other in self._others:
            mirrors.receive_mean(other, _payload(self._buffers[other]), fragment)
        return True

    def pending(self) -> np.ndarray:
        """The pending part of the mean, float32 (parameters,), gathered from all owners. Every trainer calls it."""
        found = self.mirrors.pending
        for parts in self.mirrors.shards:
            self._swap([found[parts[self._trainers.rank]]] * self._trainers.size, PENDING)
            for other in self._others:
                found[parts[other]] = self._buffers[other].view(np.float32)[: parts[other].stop - parts[other].start]
        pending = found.copy()
        found[:] = 0.0
        return pending

    def _swap(self, messages: Sequence[np.ndarray], tag: int) -> None:
        """Send every other trainer its message and receive one from each."""
        own = self._trainers
        requests = [own.irecv_some(self._buffers[other], other, tag) for other in self._others]
        requests += [own.isend(messages[other], other, tag) for other in self._others]
        wait_all(requests, self._waiting, "the other trainers' round")


def _payload(buffer: np.ndarray) -> np.ndarray:
    return buffer[: compress.length_of(buffer)]
