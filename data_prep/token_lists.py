"""Lists of tokens: what a list feature has in some rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
