"""A rank of the laboratory's measured jobs: as ``ssmpi.bench.harness.rank``, on an emulated cluster if the task names
one, whose servers and members of groups have slow links.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.lab.cluster.emulation import EmulatedTrainer, Emulation, LimitedLink, MemberEnd, MemberLink
from ssmpi.bench.harness import rank
from ssmpi.bench.harness.conversations import ServedThrough
from ssmpi.bench.harness.jobs import Task
from ssmpi.bench.harness.loop import TrainerView
from ssmpi.runtime.mpi.messages import Conversation
from ssmpi.runtime.protocols import Arrival, MPIRequest
from ssmpi.runtime.topology import Role
from ssmpi.runtime.traffic import Link

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.world import MakeConversation
    from ssmpi.trainer.trainer import Trainer

CHECKOUT = Path(__file__).parents[2]
START = "-c", f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from jobs.lab import rank; rank.main()"


class MovedThrough(Conversation):
    """A member's end of its group's conversation, as ``ServedThrough``."""

    def __init__(self, through: Callable[[MemberEnd], MemberEnd], *made: Any) -> None:
        super().__init__(*made)
        self._through = through(Conversation(*made))

    def next_arrival(self) -> Arrival | None:  # type: ignore[override]  # a mover needs no more of it
        """As ``Conversation``."""
        return self._through.next_arrival()

    def isend(self, array: np.ndarray, dest: int, tag: int, link: Link | None = None) -> MPIRequest:
        """As ``Conversation``."""
        return self._through.isend(array, dest, tag)


class Emulated(rank.Measured):
    """A rank of an emulated cluster."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._emulation = Emulation(**task.more)

    def conversations(self, role: Role) -> MakeConversation:
        """As ``Measured``."""
        if role is not Role.TRAINER:
            rate = self._emulation.link(role)
            return partial(ServedThrough, partial(LimitedLink, rate=rate)) if rate else Conversation
        if not (rate := self._emulation.group_link):
            return Conversation
        group = partial(MovedThrough, partial(MemberLink, rate=rate))
        return lambda *made: (group if made[-1].link is Link.GROUP else Conversation)(*made)

    def view(self, trainer: Trainer) -> TrainerView:
        """As ``Measured``."""
        from jobs.lab.cluster.emulated_group import EmulatedMember  # here, because servers import no torch

        topology = trainer.config.topology
        kind = EmulatedMember if topology.group > 1 else EmulatedTrainer
        return kind(trainer, self._emulation.step, trainer.world.index, topology.threads)


def main() -> None:
    """Run the rank."""
    rank.run(Emulated)
