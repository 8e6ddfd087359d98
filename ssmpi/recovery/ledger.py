"""What the first trainer keeps about the memory of all ranks: which of it counts, and what was lost with the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ssmpi.recovery.pls import LossAccount

LEDGER = "ledger"  # the name of the note in the first trainer's memory
OUTCOME = "outcome"  # beside what ``Ledger.state`` has in it: what a recovery has come to


@dataclass(frozen=True)
class Ledger:
    """``starts`` says by rank which start has made its memory: any other is an old one. ``accounts`` are those of the
    embedding PSs. ``before`` is what a PS had lost on average before the memory of today, in samples.

    It is noted whole when a start begins to train: memory that is made anew counts from the moment in which its loss
    is booked, so that a recovery that is killed begins again and books nothing twice.
    """

    starts: tuple[int, ...] = ()
    accounts: tuple[LossAccount, ...] = ()
    before: float = 0.0

    @classmethod
    def begin(cls, starts: Sequence[int], servers: int, saved: Mapping[str, Any] | None, examples: int) -> Ledger:
        """Of a start from the beginning, or from a checkpoint after ``examples`` that has ``saved`` what ``state`` was
        then, perhaps with another number of embedding PSs.
        """
        accounts = (LossAccount(covered=examples),) * servers
        return cls(tuple(starts), accounts, cls.of_state(saved).lost if saved else 0.0)

    @property
    def lost(self) -> float:
        """Samples that an embedding PS has lost, on average over all of them."""
        return self.before + self.samples_lost / max(1, len(self.accounts))

    @property
    def samples_lost(self) -> int:
        """By all embedding PSs together, in the memory of today."""
        return sum(account.lost for account in self.accounts)

    def pls(self, total: int) -> float:
        """PLS of a run of ``total`` samples (CPR, arXiv 2011.02999): see ``recovery.pls``."""
        return self.lost / total

    def reloaded(self, ranks: Mapping[int, int], taken: Mapping[int, int], now: int) -> Ledger:
        """After the memory of some ``ranks`` (by rank, the start that makes it anew) was lost at ``now`` samples.
        ``taken`` is by embedding PS when the newest state of all its rows was taken.
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
        """What ``state`` gave."""
        return cls(tuple(state["starts"]), tuple(LossAccount(*each) for each in state["accounts"]), state["before"])


def reloaded(account: LossAccount, taken: int, now: int) -> LossAccount:
    """One account after a loss at ``now``; rows that a lost trainer had trained on are counted again, so that it may
    be less than at the last one.
    """
    saved = account.saved(taken)
    return saved.reloaded(max(now, saved.covered))
