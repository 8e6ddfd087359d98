"""PLS, the portion of lost samples: how much training the rows of the embedding PSs miss after partial recoveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LossAccount:
    """The losses of one embedding PS, in samples of all trainers since the run began. ``covered`` is the count up to
    which nothing more can be lost: that of the newest committed state of all its rows, or of its last reload, whichever
    is later; 0 at first, because initial rows follow from the seed. ``lost`` is the sum booked so far.
    """

    covered: int = 0
    lost: int = 0

    def saved(self, taken: int) -> LossAccount:
        """The account after a state of all rows, ``taken`` at this count, was committed. Saves of some rows do not
        count. A state from before the last reload changes nothing: what it could restore is booked as lost already.
        """
        return LossAccount(max(self.covered, taken), self.lost)

    def reloaded(self, now: int) -> LossAccount:
        """The account after the rows were lost at count ``now`` and reloaded from the newest committed state. A second
        loss before the next save books only the samples since this one; repeating a reload books nothing.
        """
        assert now >= self.covered, f"a loss at {now:,} samples, before the {self.covered:,} that are accounted for"
        return LossAccount(now, self.lost + now - self.covered)


def pls(accounts: Sequence[LossAccount], total: int) -> float:
    """PLS of a run of ``total`` samples, from the accounts of all its embedding PSs (CPR, arXiv 2011.02999).

    Each loss adds (S_now - S_covered) / (S_total N); k PSs that fail together add k times that (derived).
    """
    return sum(account.lost for account in accounts) / (total * len(accounts))
