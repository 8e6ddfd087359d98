"""The first trainer's record of all ranks' memory: which of it is valid, and what was lost with the rest, as PLS. PLS,
the portion of lost samples, is how much training the rows of the embedding PSs miss after partial recoveries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class LossAccount:
    """The losses of one embedding PS, in samples of all trainers since the run began. ``covered`` is the count up to
    which nothing more can be lost: that of the newest committed save of all its rows, or of its last reload, whichever
    is later; 0 at first, because initial rows follow from the seed. ``lost`` is the sum booked so far.

    With priorities 1 / r saves of a fraction r of the rows, one every r T_save, count as a save of all rows, as in CPR,
    where PLS follows from T_save alone: E[PLS] = T_save / (2 N T_fail). What of the rows' updates is lost is another
    figure, ``updates_lost``, which priorities lower where access is skewed.
    """

    covered: int = 0
    lost: int = 0

    def saved(self, taken: int) -> LossAccount:
        """The account after a save of all rows, ``taken`` at this count, was committed. One from before the last reload
        changes nothing: what it could restore is booked as lost already.
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


@dataclass(frozen=True)
class Ledger:
    """``starts`` maps each rank to the start that created its memory: memory of any other start is stale. ``accounts``
    are those of the embedding PSs. ``before`` is what a PS had lost on average before the present memory was created,
    in samples.

    It is written atomically when a start begins to train: new memory becomes valid in the same write that books its
    loss, so a recovery that is killed starts over and books nothing twice.
    """

    starts: tuple[int, ...] = ()
    accounts: tuple[LossAccount, ...] = ()
    before: float = 0.0

    @classmethod
    def begin(cls, starts: Sequence[int], servers: int, saved: Mapping[str, Any] | None, examples: int) -> Ledger:
        """The ledger of a start from the beginning, or from a checkpoint after ``examples`` with the ``saved`` state,
        perhaps of another number of embedding PSs.
        """
        accounts = (LossAccount(covered=examples),) * servers
        return cls(tuple(starts), accounts, cls.of_state(saved).lost if saved else 0.0)

    @property
    def lost(self) -> float:
        """Samples that an embedding PS has lost, on average over all of them."""
        return self.before + self.samples_lost / max(1, len(self.accounts))

    @property
    def samples_lost(self) -> int:
        """Samples lost by all embedding PSs together since the present memory was created."""
        return sum(account.lost for account in self.accounts)

    def pls(self, total: int) -> float:
        """PLS of a run of ``total`` samples (CPR, arXiv 2011.02999)."""
        return self.lost / total

    def reloaded(self, ranks: Mapping[int, int], taken: Mapping[int, int], now: int) -> Ledger:
        """The ledger after the memory of some ``ranks`` (rank to the start that recreates it) was lost at ``now``
        samples. ``taken`` maps embedding PSs to the samples at which the newest state of all their rows was taken.
        """
        starts = tuple(ranks.get(rank, start) for rank, start in enumerate(self.starts))
        accounts = tuple(
            reloaded(account, taken[index], now) if index in taken else account
            for index, account in enumerate(self.accounts)
        )
        return replace(self, starts=starts, accounts=accounts)

    def state(self) -> dict[str, Any]:
        """As JSON has it."""
        accounts = [[account.covered, account.lost] for account in self.accounts]
        return {"starts": list(self.starts), "accounts": accounts, "before": self.before}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Ledger:
        """The inverse of ``state``."""
        return cls(tuple(state["starts"]), tuple(LossAccount(*each) for each in state["accounts"]), state["before"])


@dataclass(frozen=True)
class Booking:
    """What a start books when training begins: the ``ledger``, what this start adds to the record of its recovery, and
    the portion of lost samples by then.
    """

    ledger: Ledger = field(default_factory=Ledger)
    losses: Mapping[str, Any] = field(default_factory=dict)
    pls: float = 0.0


def reloaded(account: LossAccount, taken: int, now: int) -> LossAccount:
    """One account after a loss at ``now``. Rows that a lost trainer had trained on are repeated, so ``now`` may be less
    than at the previous loss.
    """
    saved = account.saved(taken)
    return saved.reloaded(max(now, saved.covered))
