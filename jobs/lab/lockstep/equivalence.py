"""Whether two ways of training come to the same quality, decided by tests over pairs of runs of the same seed.

*Equal* is what two one-sided t-tests show (TOST, Schuirmann 1987): that the mean difference lies within a margin that
was named before. *Different* is what a two-sided t-test shows: that it is not 0. Both may hold, for a small difference;
where neither does, the runs were too few. The tests are scipy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ssmpi.runtime.errors import UserError

if TYPE_CHECKING:
    from types import ModuleType

INSTALL = "pip install 'ssmpi[statistics]'"
Alternative = Literal["two-sided", "less", "greater"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """``differences`` are NE over that of the reference, minus 1, one for each seed; below 0 is better. Comparisons of
    one ``family`` are corrected for their number together.
    """

    family: str
    name: str
    differences: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``mean`` with its two-sided interval at 1 - ``level``, and what was decided at that level; p-values are corrected
    for the family.
    """

    comparison: Comparison
    mean: float
    interval: tuple[float, float]
    p_equal: float
    p_different: float
    level: float

    @property
    def equal(self) -> bool:
        """Whether the difference was shown to lie within the margin."""
        return self.p_equal < self.level

    @property
    def different(self) -> bool:
        """Whether the difference was shown not to be 0."""
        return self.p_different < self.level

    @property
    def text(self) -> str:
        """In words."""
        found = ["equal"] * self.equal + [f"{'worse' if self.mean > 0 else 'better'}"] * self.different
        return ", but ".join(found) or "undecided"


def judge(comparisons: Sequence[Comparison], margin: float, level: float) -> list[Verdict]:
    """One verdict for each, in order; every family gets Holm's correction, for either kind of test.

    Two runs at least for each; UserError without scipy.
    """
    stats = _stats()
    equal = [_tost(stats, comparison.differences, margin) for comparison in comparisons]
    different = [_p(stats, comparison.differences, 0.0, "two-sided") for comparison in comparisons]
    for family in dict.fromkeys(comparison.family for comparison in comparisons):
        members = [k for k, comparison in enumerate(comparisons) if comparison.family == family]
        for values in (equal, different):
            for k, corrected in zip(members, holm([values[k] for k in members]), strict=True):
                values[k] = corrected
    return [
        Verdict(
            comparison=comparison,
            mean=float(np.mean(comparison.differences)),
            interval=_interval(stats, comparison.differences, level),
            p_equal=p_equal,
            p_different=p_different,
            level=level,
        )
        for comparison, p_equal, p_different in zip(comparisons, equal, different, strict=True)
    ]


def holm(p: Sequence[float]) -> list[float]:
    """Corrected p-values of several tests (Holm 1979): the k-th smallest of n times n - k + 1, never falling."""
    order = np.argsort(p, kind="stable")
    scaled = np.array(p)[order] * np.arange(len(p), 0, -1)
    found = np.empty(len(p))
    found[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return [float(value) for value in found]


def _tost(stats: ModuleType, differences: Sequence[float], margin: float) -> float:
    """The p-value of the mean not being within the margin."""
    return max(_p(stats, differences, -margin, "greater"), _p(stats, differences, margin, "less"))


def _p(stats: ModuleType, differences: Sequence[float], mean: float, alternative: Alternative) -> float:
    if len(set(differences)) == 1:  # no spread: t is infinite, or 0 / 0 where nothing is to be shown
        gap = differences[0] - mean
        shown = {"two-sided": gap != 0, "greater": gap > 0, "less": gap < 0}[alternative]
        return 0.0 if shown else 1.0
    return float(stats.ttest_1samp(differences, mean, alternative=alternative).pvalue)


def _interval(stats: ModuleType, differences: Sequence[float], level: float) -> tuple[float, float]:
    if len(set(differences)) == 1:
        return differences[0], differences[0]
    found = stats.ttest_1samp(differences, 0.0).confidence_interval(1.0 - level)
    return float(found.low), float(found.high)


def _stats() -> ModuleType:
    try:
        from scipy import stats
    except ImportError:
        raise UserError(f"scipy is not installed: {INSTALL}") from None
    found: ModuleType = stats
    return found
