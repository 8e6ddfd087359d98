"""Lists of tokens: what a list feature has in some rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TokenLists:
    """``tokens`` uint64 (tokens,), list after list; ``ends`` int64 (rows,): where each row's list ends in them."""

    tokens: np.ndarray
    ends: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """How many tokens each row has, int64 (rows,)."""
        return np.diff(self.ends, prepend=0)

    def take(self, which: slice | np.ndarray) -> TokenLists:
        """The lists of some consecutive rows, or of those where bool (rows,) is set."""
        chosen = np.zeros(len(self.ends), dtype=bool)
        chosen[which] = True
        lengths = self.lengths
        return TokenLists(self.tokens[np.repeat(chosen, lengths)], np.cumsum(lengths[chosen]))
