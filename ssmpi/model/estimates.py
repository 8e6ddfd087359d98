"""Thresholds of a network's ``Threshold`` operators, from the magnitudes that training measures. A threshold passes
about as many values as a ``TopK`` would, without a selection in each example.

After a ReLU values are 0 or positive, and the positive ones roughly exponential. If p is the share of values that are
not 0, and b their mean size, a share 1 - s of all values is larger than b ln(p / (1 - s)). Without a ReLU p is 1, and
this is the threshold of Laplace's distribution, -b ln(1 - s) (Gupta et al., arXiv 2010.08899, section 2.2).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ssmpi.model.network import Network
from ssmpi.model.top_k import thresholds

# Columns: how many batches the means are of, at most MEMORY; the share of values that are not 0; the mean size of all;
# the share to become 0.
BATCHES, NONZERO, SIZE, SHARE = range(4)
COLUMNS = SHARE + 1
MEANS = SIZE + 1  # columns that are saved
MEMORY = 1000.0  # batches, of at most 512 examples: from then on a new one counts a thousandth
SUFFIX = ".sizes"  # behind the operator's name in a saved model


@dataclass(frozen=True)
class Estimates:
    """``values`` float64 (operators, 4) of a ``network``, in its order. ``learning``: threads measure what they train
    on, without locks. Before anything is measured, all values pass.
    """

    network: Network
    learning: bool = False
    given: np.ndarray | None = None
    values: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        shares = [operator.share for operator in thresholds(self.network)]
        values = np.zeros((len(shares), COLUMNS)) if self.given is None else self.given
        values[:, SHARE] = shares
        object.__setattr__(self, "values", values)

    @property
    def names(self) -> list[str]:
        """Of the operators."""
        return [operator.name for operator in thresholds(self.network)]

    def take_mean(self, measured: Sequence[np.ndarray] | np.ndarray) -> None:
        """Become the mean of the ``values`` that trainers have measured, where each batch counts as much as any other.
        What only one of them has measured stays the same to the bit.
        """
        means = np.array(measured)[:, :, :MEANS]
        batches = means[:, :, BATCHES]
        total = batches.sum(axis=0)
        self.values[:, :MEANS] = np.sum(means * (batches / np.maximum(total, 1.0))[:, :, None], axis=0)
        self.values[:, BATCHES] = np.minimum(total, MEMORY)

    def forget_others(self, computed: Container[str]) -> None:
        """Forget what was measured of operators that are not ``computed`` here, but by other members of a group."""
        for name, row in zip(self.names, self.values, strict=True):
            if name not in computed:
                row[:MEANS] = 0.0

    def datasets(self) -> list[tuple[str, np.ndarray, dict[str, str]]]:
        """What to save."""
        return [(name + SUFFIX, row[:MEANS], {}) for name, row in zip(self.names, self.values, strict=True)]

    def load(self, saved: Mapping[str, np.ndarray]) -> None:
        """Take what was saved, if it was."""
        for name, row in zip(self.names, self.values, strict=True):
            if name + SUFFIX in saved:
                row[:MEANS] = saved[name + SUFFIX]
