"""The sparse half of a synchronous step: the row gradients of all trainers become one update per row. Every row has an
owner among the trainers, which sums all trainers' gradients for it in trainer order and updates it. So each row gets
one update, whatever its optimizer, and the result does not depend on the order of messages.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import numpy as np

from ssmpi.runtime.mpi.to_owners import to_owners
from ssmpi.runtime.protocols import RowLookup
from ssmpi.sync.round_context import RoundContext

SERVER = 1 << 32  # a row's key is its PS times this plus its number there


def row_gradient_bytes(rows: float, dim: int) -> float:
    """Payload of the gradients of ``rows`` rows sent to the trainers that update them."""
    return rows * (8 + 4 * dim)


class StepAgreement(Protocol):
    """See ``synchronous.CommonStep``."""

    def agree(self, examples: int, factor: float, counts: np.ndarray) -> tuple[float, float, np.ndarray]:
        """The examples of all, common factor, and how many rows each trainer sends to each other."""


class SummedRows:
    """Some rows of all PSs, in the order of the PSs: the part of a lookup that an update needs. Each counts as one
    access per step: the accesses of other trainers are not transmitted.
    """

    def __init__(self, keys: np.ndarray, servers: int, number: int) -> None:
        self.number = number
        self.rows = (keys % SERVER).astype(np.int32)
        starts = np.searchsorted(keys, np.arange(servers + 1) * SERVER).tolist()
        self.parts = [slice(start, stop) for start, stop in pairwise(starts)]  # which of them are those of each PS

    def occurrences(self) -> np.ndarray:
        """int32 (rows,): one each."""
        return np.ones(len(self.rows), np.int32)


class SynchronousRows:
    """Updates rows for the only worker thread of a trainer, in place of its tables."""

    def __init__(self, agreement: StepAgreement, context: RoundContext) -> None:
        rows = context.local.rows
        self._agreement, self._context, self._tables = agreement, context, rows.tables
        self._servers, self._width = rows.servers, rows.width
        self._number = 0  # that of the last batch, then the next ones, which are within it

    def push(self, lookup: RowLookup, gradients: np.ndarray, factor: float, thread: int) -> None:
        """Update all trainers' rows of this step; returns once this trainer's share has been applied. The all-reduce of
        the dense gradients follows on every trainer, so no trainer starts its next step before.
        """
        server = np.repeat(np.arange(self._servers), np.diff(lookup.starts))
        summed = lookup.summed(gradients)
        if lookup.all_mapped:
            self._context.replicas.meter.traffic.add_rows(lookup.unique_count)  # read in place
        keys = server * SERVER + lookup.rows[: len(summed)]
        self._number = lookup.number
        self._update(keys, summed, len(lookup.values), factor, thread)

    def follow(self) -> None:
        """The same without a batch: this trainer may own rows of the others."""
        self._update(np.empty(0, np.int64), np.empty((0, self._width), np.float32), 0, 1.0, 0)

    def _update(self, keys: np.ndarray, gradients: np.ndarray, examples: int, factor: float, thread: int) -> None:
        size = self._context.replicas.size
        owners = keys % size
        total, factor, counts = self._agreement.agree(examples, factor, np.bincount(owners, minlength=size))
        order = np.argsort(owners, kind="stable")
        sent = [keys[order], gradients[order] * np.float32(examples / max(total, 1.0))]
        context = self._context
        ours, parts = to_owners(context.replicas, sent, counts, context.waiting, "the other trainers' row gradients")
        unique, places = np.unique(ours, return_inverse=True)
        if total and self._tables:  # a step, for tables that decay also without rows of this trainer
            summed = np.zeros((len(unique), self._width), np.float32)
            np.add.at(summed, places, parts)
            self._tables.update(SummedRows(unique, self._servers, self._number), summed, factor, thread)
            self._tables.drain()
        self._number += 1
