"""Elastic exchanges of some entries: those in which a replica is furthest from the center that it last saw.

A trainer remembers of each entry what the center held when they last exchanged it. A codec chooses among the distances
from there; the trainer sends its values at these entries, the sync PS answers with the center's, and both move there as
in a whole exchange. So at every entry w_i + c is conserved at any time, nothing is approximated, and no sync PS keeps
anything of a client: what an entry waits for is that it has come far enough, or the end of a part of the run, where all
that differ are exchanged. EF21 (Richtarik et al., NeurIPS 2021),
which sends encode(x - mirror), moves by what the mirror says where it has not been told for long; here such entries
rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numba import njit

from ssmpi import compress
from ssmpi.comm.rank_memory import ProcessMemory
from ssmpi.core.traffic import Traffic
from ssmpi.sync.options import RoundOptions
from ssmpi.sync.peers import LocalTrainer
from ssmpi.sync.pushes import Encoders, Shards, codec_of

ALL = "threshold:0"  # a codec that chooses all that differ


@njit(cache=True, nogil=True)
def pull_at(center: np.ndarray, places: np.ndarray, values: np.ndarray, alpha: float, old: np.ndarray) -> None:
    """old = center[places]; center[places] += alpha (values - old)."""
    a = np.float32(alpha)
    for k in range(places.shape[0]):
        before = center[places[k]]
        old[k] = before
        center[places[k]] = before - a * (before - values[k])


class SelectedEntries:
    """A trainer's end: what it has ``seen`` of the center, float32 (parameters,), and the codecs that choose. While it
    is ``closing`` all entries are chosen that are not where they were seen.
    """

    def __init__(
        self, options: RoundOptions, shards: Shards, seen: np.ndarray, local: LocalTrainer, thread: int
    ) -> None:
        self.seen, self._shards = seen, shards
        self._far = np.empty_like(seen)
        self._encoders = Encoders(options, shards, local.replica.layers, local.memory, (0, thread))
        self._all = Encoders(replace(options, codec=ALL), shards, (), ProcessMemory(), (0, thread))
        self.closing = False
        self._places: list[np.ndarray] = []

    def choose(self, snapshot: np.ndarray, fragment: int, traffic: Traffic) -> list[np.ndarray]:
        """A payload for each sync PS of a fragment of ``snapshot`` float32 (parameters,)."""
        for part in self._shards[fragment]:
            np.subtract(snapshot[part], self.seen[part], out=self._far[part])
        payloads = (self._all if self.closing else self._encoders).take(self._far, fragment, snapshot)
        self._places = []
        for payload, part in zip(payloads, self._shards[fragment], strict=True):
            traffic.add_entries(*compress.count_of(payload))
            self._places.append(part.start + compress.entries(payload, part.stop - part.start)[0])
        return payloads

    def answers(self) -> list[np.ndarray]:
        """Room for what the sync PSs answer to the last choice."""
        return [np.empty(places.size, np.float32) for places in self._places]

    def refer(self, snapshot: np.ndarray, answers: Sequence[np.ndarray], alpha: float, reference: np.ndarray) -> None:
        """Make ``reference`` what a replica moves towards, the center at the chosen entries and its own elsewhere, all
        float32 (parameters,); from now on the center is seen where it has moved to.
        """
        for places, old in zip(self._places, answers, strict=True):
            reference[places] = old
            self.seen[places] = old - np.float32(alpha) * (old - snapshot[places])


def chosen_bytes(options: RoundOptions, shards: Shards) -> tuple[float, float]:
    """Payload of an exchange of every fragment, there and back, at the density asked for."""
    kind, own = codec_of(options)
    assert issubclass(kind, compress.SparseCodec)
    sizes = [part.stop - part.start for parts in shards for part in parts]
    back = sum(4 * kind.expected_entries(own, size) for size in sizes)
    return sum(kind.expected_bytes(own, size) for size in sizes), back


def choosing_error(options: RoundOptions) -> str:
    """Why elastic exchanges cannot have the codec of these settings; empty if they can."""
    kind, own = codec_of(options)
    if not issubclass(kind, compress.SparseCodec):
        return "chooses entries, which only threshold and random-k do"
    return "exchanges weights, of which 16 bits lose what is learned" if own.half else ""
