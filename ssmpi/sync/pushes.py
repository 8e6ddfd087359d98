"""Gradients that worker threads have not pushed yet, and the format of pushes.

A codec removes what it sends from a thread's pending gradients; the rest stays for the next push: error feedback. Each
thread has its own: in the paper (Gupta et al., KDD 2021) Hogwild threads share one residual without locks, so that an
entry may be sent twice or get lost, and the residual must be drained now and then.

A push to a sync PS is float32 ``factor`` of the learning rate and uint32 number of payloads, then the payloads, one for
each thread that has made a step; with the codec ``dense`` it is the sum over the threads and the factor, as float32
words.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ssmpi import compress
from ssmpi.compress import ShardCodecs
from ssmpi.runtime.traffic import Traffic
from ssmpi.sync.codecs import count_entries

HEAD = 8  # bytes of a push before its payloads


class PendingGradients:
    """The ``gradients`` of one worker thread that are not pushed yet, float32 (parameters,); a push carries the
    ``factor`` of the last step. The lock is contended only during a push.
    """

    def __init__(self, gradients: np.ndarray, factor: float) -> None:
        self.gradients, self._lock, self.factor = gradients, threading.Lock(), factor
        self._encoded: set[int] = set()  # fragments, since the last step

    def add(self, gradients: np.ndarray, factor: float) -> None:
        """Add one step's gradients and store the factor of its learning rate."""
        with self._lock:
            self.gradients += gradients
            self.factor = factor
            self._encoded.clear()

    def move(self, part: slice, into: np.ndarray) -> None:
        """Add one part of the gradients to that part of a vector."""
        with self._lock:
            into[part] += self.gradients[part]
            self.gradients[part] = 0.0

    def encode(self, codecs: ShardCodecs, fragment: int) -> list[np.ndarray] | None:
        """Encode a fragment: a payload for each sync PS, valid until the next; None if there was no step since the last
        one, so that pauses change nothing.
        """
        with self._lock:
            if fragment in self._encoded:
                return None
            self._encoded.add(fragment)
            return codecs.take(self.gradients, fragment)


def message(payloads: Sequence[np.ndarray], factor: float, traffic: Traffic) -> np.ndarray:
    """The push to one sync PS, uint8, of each thread's payload for it."""
    head = np.empty(HEAD, np.uint8)
    head[:4].view(np.float32)[0], head[4:].view(np.uint32)[0] = factor, len(payloads)
    count_entries(payloads, traffic)
    return np.concatenate([head, *payloads])


def total(pending: Iterable[PendingGradients], part: slice, into: np.ndarray) -> float:
    """Move one part of all pending gradients, summed, into that part of a vector; returns the factor."""
    into[part], factor = 0.0, 1.0
    for each in pending:
        each.move(part, into)
        factor = each.factor
    return factor


def read_push(message: np.ndarray, gradients: np.ndarray) -> float:
    """Fill ``gradients`` float32 (shard,) with the sum of the payloads of a push, uint8; returns its factor.
    PayloadError if one is damaged.
    """
    factor, number, at = float(message[:4].view(np.float32)[0]), int(message[4:HEAD].view(np.uint32)[0]), HEAD
    gradients[:] = 0.0
    for _ in range(number):
        length = compress.length_of(message[at:])
        compress.add(message[at : at + length], gradients)
        at += length
    if at != message.size:
        raise compress.PayloadError(f"{message.size - at:,} bytes follow the last of {number}")
    return factor


def by_thread(saved: Mapping[str, np.ndarray], name: str) -> dict[int, np.ndarray]:
    """Arrays whose names start with ``name``, by the number that follows."""
    return {int(key.removeprefix(name)): values for key, values in saved.items() if key.startswith(name)}


def take_back(residuals: Mapping[int, np.ndarray], saved: Mapping[int, np.ndarray]) -> None:
    """Add the residuals that an earlier job saved to those of the present threads."""
    threads = sorted(residuals)
    for thread, values in saved.items():
        residuals[threads[thread % len(threads)]] += values
