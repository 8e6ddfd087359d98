"""The tokens of a sparse feature in some rows: one a row, or codes of the few different ones there are, or lists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ssmpi.runtime.compiled.jit import njit


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


@njit(cache=True, nogil=True)
def _count(codes: np.ndarray, times: np.ndarray) -> None:
    for code in codes:
        times[code] += 1


@njit(cache=True, nogil=True)
def _spread(found: np.ndarray, codes: np.ndarray, rows: np.ndarray) -> None:
    for row in range(codes.size):
        rows[row] = found[codes[row]]
