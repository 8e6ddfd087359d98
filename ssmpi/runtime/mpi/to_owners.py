"""Rows of arrays, each to the rank that owns it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.runtime.mpi.waiting import WaitOptions, wait_all

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation


def to_owners(
    conversation: Conversation, arrays: Sequence[np.ndarray], counts: np.ndarray, waiting: WaitOptions, whom: str
) -> list[np.ndarray]:  # fmt: skip
    """Send each rank its rows of some arrays, which are in the order of their owners; returns the rows that this rank
    owns, from all ranks, in rank order. ``counts[i, j]`` rows go from rank i to j. A tag is an array's place.
    """
    rank = conversation.rank
    starts = np.concatenate([[0], np.cumsum(counts[rank])])
    ends = np.concatenate([[0], np.cumsum(counts[:, rank])])
    ours = [np.empty((ends[-1], *array.shape[1:]), array.dtype) for array in arrays]
    requests = []
    for other in range(conversation.size):
        out, into = slice(*starts[other : other + 2]), slice(*ends[other : other + 2])
        for tag, (given, taken) in enumerate(zip(arrays, ours, strict=True)):
            if other == rank:
                taken[into] = given[out]
                continue
            if counts[other, rank]:
                requests.append(conversation.irecv(taken[into], other, tag))
            if counts[rank, other]:
                requests.append(conversation.isend(given[out], other, tag))
    wait_all(requests, waiting, whom)
    return ours
