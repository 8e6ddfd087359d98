"""Parsed rows, column by column, and what is counted of them. Tokens of a sparse feature are one a row, or codes of the
few different ones there are, or lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ssmpi.data.schema import SPLITS
from ssmpi.runtime.compiled.jit import njit

LARGEST = 2.0**62


@dataclass(frozen=True)
class Tokens:
    """``values`` uint32 or uint64 (n,); the bit ``bit`` of ``missing``, integers (n,), is set where there is none. n is
    the number of rows, of a list feature that of the tokens in all lists. With ``codes`` int32 (rows,) it is that of
    different tokens: row r has ``values[codes[r]]``, so that each is looked at once for all of its rows.
    """

    values: np.ndarray
    missing: np.ndarray
    bit: int = 0
    codes: np.ndarray | None = None

    @cached_property
    def times(self) -> np.ndarray:
        """How often each of the different tokens comes, int64 (n,); empty if each comes once."""
        times = np.zeros(0 if self.codes is None else len(self.values), np.int64)
        if self.codes is not None:
            _count(self.codes, times)
        return times

    @property
    def absent(self) -> int:
        """How many rows have none."""
        gone = (self.missing >> self.bit) & 1
        return int(gone.sum(dtype=np.int64) if self.codes is None else self.times[gone != 0].sum())

    def take(self, which: slice | np.ndarray) -> Tokens:
        """Those of some rows: a slice, or where bool (rows,) is set."""
        if self.codes is not None:
            return replace(self, codes=self.codes[which])
        return replace(self, values=self.values[which], missing=self.missing[which])

    def modulo(self, size: int) -> Tokens:
        """The remainders by ``size``; 0: as they are."""
        return replace(self, values=self.values % self.values.dtype.type(size)) if size else self

    def by_row(self, found: np.ndarray) -> np.ndarray:
        """What was ``found`` (n,) of the values, for each row."""
        if self.codes is None:
            return found
        rows = np.empty(len(self.codes), found.dtype)
        _spread(found, self.codes, rows)
        return rows


@dataclass(frozen=True)
class TokenLists:
    """``tokens`` uint64 (tokens,), list after list; ``ends`` int64 (rows,): where each row's list ends in them.
    ``weights`` float32 (tokens,), None if all are 1.
    """

    tokens: np.ndarray
    ends: np.ndarray
    weights: np.ndarray | None = None

    @property
    def lengths(self) -> np.ndarray:
        """How many tokens each row has, int64 (rows,)."""
        return np.diff(self.ends, prepend=0)

    def take(self, which: slice | np.ndarray) -> TokenLists:
        """The lists of some consecutive rows, or of those where bool (rows,) is set."""
        chosen = np.zeros(len(self.ends), dtype=bool)
        chosen[which] = True
        lengths = self.lengths
        return self._take(np.repeat(chosen, lengths), lengths[chosen])

    def cut(self, longest: int) -> TokenLists:
        """The first ``longest`` tokens of each list."""
        lengths = self.lengths
        place = np.arange(len(self.tokens)) - np.repeat(self.ends - lengths, lengths)
        return self._take(place < longest, np.minimum(lengths, longest))

    def _take(self, which: np.ndarray, lengths: np.ndarray) -> TokenLists:
        """The tokens where bool (tokens,) is set, in lists of these lengths."""
        weights = None if self.weights is None else self.weights[which]
        return TokenLists(self.tokens[which], np.cumsum(lengths), weights)


@dataclass
class Tally:
    """What pass 1 counts: ``missing`` int64 (fields,); ``largest`` int64 (dense,): largest values, of tables absolute;
    ``splits`` int64 (3,), the rows of each split where rows say theirs; ``moments`` float64 (dense, 3): number, sum and
    sum of squares of the values of counted rows that are not missing; ``times``: the first and the last, where rows are
    to be in their order; ``listed``: tokens of all lists.
    """

    missing: np.ndarray
    largest: np.ndarray
    splits: np.ndarray
    moments: np.ndarray
    positives: int = 0
    times: list[float] = field(default_factory=list)
    listed: int = 0


@dataclass
class Rows:
    """Rows of a table, valid until the next ones are read: ``label`` uint8 (rows,), zeros if there is none; ``dense``
    float64 (dense, rows), NaN where missing; ``tokens`` of the sparse features that are no lists, and ``lists`` of the
    others, which follow them; ``split`` uint8 (rows,): the index of each row's, None if splits are ranges of rows;
    ``times``: where rows must be in their order.
    """

    label: np.ndarray
    dense: np.ndarray
    tokens: Sequence[Tokens]
    split: np.ndarray | None = None
    times: np.ndarray | None = None
    only_train: bool = False  # count training rows alone
    lists: Sequence[TokenLists] = ()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.label)

    def part(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)``."""
        return self if (start, stop) == (0, self.rows) else self.take(slice(start, stop))

    def take(self, which: slice | np.ndarray) -> Rows:
        """Some rows: a slice, or where bool (rows,) is set."""
        return replace(
            self,
            label=self.label[which],
            dense=self.dense[:, which],
            tokens=[one.take(which) for one in self.tokens],
            split=None if self.split is None else self.split[which],
            times=None if self.times is None else self.times[which],
            lists=[one.take(which) for one in self.lists],
        )

    def tokens_of(self, feature: int) -> Tokens:
        """Of a sparse feature; of those of lists none is missing."""
        if feature < len(self.tokens):
            return self.tokens[feature]
        values = self.lists[feature - len(self.tokens)].tokens
        return Tokens(values, np.zeros(len(values), dtype=np.uint8))

    def tally(self, into: Tally) -> None:
        """Add to everything but ``moments``."""
        into.positives += int(self.label.sum())
        empty = [np.count_nonzero(one.lengths == 0) for one in self.lists]
        into.missing += [*np.isnan(self.dense).sum(axis=1), *(one.absent for one in self.tokens), *empty]
        if self.rows and len(self.dense):
            largest = np.fmax.reduce(np.abs(self.dense), axis=1)
            into.largest[:] = np.fmax(into.largest, np.minimum(largest, LARGEST))
        into.listed += sum(len(one.tokens) for one in self.lists)
        if self.split is not None:
            into.splits += np.bincount(self.split, minlength=len(SPLITS))
        if self.times is not None and self.rows:
            into.times[:] = [(into.times or self.times.tolist())[0], float(self.times[-1])]

    def counted(self, into: Tally) -> Rows:
        """The rows whose tokens are counted, their dense values added to ``moments``."""
        chosen = self.take(self.split == 0) if self.only_train and self.split is not None else self
        there = ~np.isnan(chosen.dense)
        values = np.where(there, chosen.dense, 0)
        into.moments += np.stack([there.sum(axis=1), values.sum(axis=1), (values * values).sum(axis=1)], axis=1)
        return chosen


class BadRows(dict[int, tuple[str, str]]):
    """What is wrong with rows, by number: the reason, and what was found with the remedy."""

    def add(self, where: np.ndarray, reason: str, found: Callable[[int], str]) -> None:
        """Note the rows where bool (rows,) is set, and what is ``found`` in each."""
        for row in map(int, np.flatnonzero(where)):
            self[row] = reason, found(row)

    def left_out_of(self, rows: Rows) -> Rows:
        """The good rows."""
        if not self:
            return rows
        good = np.ones(rows.rows, dtype=bool)
        good[list(self)] = False
        return rows.take(good)


@njit(cache=True, nogil=True)
def _count(codes: np.ndarray, times: np.ndarray) -> None:
    for code in codes:
        times[code] += 1


@njit(cache=True, nogil=True)
def _spread(found: np.ndarray, codes: np.ndarray, rows: np.ndarray) -> None:
    for row in range(codes.size):
        rows[row] = found[codes[row]]
