"""The lanes of a trainer, which compute the steps of its worker threads. In a group a lane has a helper thread on every
other member with work for it; a trainer that holds a whole replica computes all of a step itself.

A helper's thread lasts as long as the lane's, one part of the run: the worker thread closes its lane when its batches
end, after the last steps of its helpers, so that nothing is lost at a pause.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.model.estimates import Estimates
from ssmpi.model.executor import PIECE
from ssmpi.model.lane import HelperModel, HomeModel, HomeOptimizer
from ssmpi.model.member_program import MemberProgram, transform
from ssmpi.model.messages import Channel
from ssmpi.runtime.mpi.mailbox import Mailboxes
from ssmpi.runtime.mpi.mover import Mover

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.model.replica import Replica, ThreadModel
    from ssmpi.runtime.mpi.world import World
    from ssmpi.runtime.protocols import DenseStep

StartThread = Callable[..., Thread]


class Lanes:
    """Of a trainer that holds a replica alone: threads 0 and up are its ``workers``, and nobody needs its help."""

    helpers = range(0)  # numbers of the threads, which follow those of the workers

    def __init__(self, replica: Replica, threads: int) -> None:
        self._replica, self.workers = replica, range(threads)

    def begin(self, start: StartThread) -> None:
        """A part of the run begins, before its threads are started."""

    def model(self, thread: int) -> ThreadModel:
        """The network as a worker thread computes it. Called on that thread."""
        return self._replica.thread_model()

    def optimizer(self, own: DenseStep) -> DenseStep:
        """What steps all of the network, from what steps what this trainer owns."""
        return own

    def helper(self, thread: int) -> HelperModel:
        """What a helper thread computes with, by its number. Called on that thread."""
        raise AssertionError(f"thread {thread} helps nobody")

    def close(self, thread: int) -> None:
        """The batches of a worker thread have ended. Called on that thread."""

    def end(self) -> None:
        """The part has ended, on all threads."""


class GroupLanes(Lanes):
    """Of a member of a group, whose ``replica`` holds what it owns. Every member creates it."""

    def __init__(self, config: Config, world: World, replica: Replica) -> None:
        topology, self._member = config.topology, world.group.rank
        homes = [member for member in range(topology.group) if topology.is_home(member)]
        self._parts = {home: transform(config.network, config.places, self._member, home) for home in homes}
        replica.measured.forget_others({name for part in self._parts.values() for name in part.widths})
        self._lanes = [(home, thread) for home in homes for thread in range(topology.threads)]
        boxes = [self._parts[home].mailboxes(PIECE) for home, _ in self._lanes]
        self._borders = [0, *itertools.accumulate(map(len, boxes))]  # numbers of their mailboxes
        every = itertools.chain.from_iterable(boxes)
        self._mailboxes = Mailboxes(world.group, every, config.waiting, mapped=config.run.shared_memory)
        self._helped = [lane for lane in self._lanes if self._member in self._parts[lane[0]].helpers]
        own = len(self._lanes) - topology.helpers(world.index)
        super().__init__(replica, own)
        self.helpers = range(own, own + len(self._helped))
        self._models: dict[int, HomeModel] = {}
        self._mover: tuple[Mover, Thread] | None = None

    def begin(self, start: StartThread) -> None:
        """As ``Lanes``; starts a mover if some members share no memory."""
        if self._mailboxes.outgoing or self._mailboxes.incoming:
            mover = Mover(self._mailboxes)
            self._mover = mover, start("mover", mover.run)

    def model(self, thread: int) -> HomeModel:
        """As ``Lanes``."""
        made = self._models[thread] = HomeModel(*self._of_lane(self._member, thread))
        return made

    def optimizer(self, own: DenseStep) -> DenseStep:
        """As ``Lanes``."""
        return HomeOptimizer(own)

    def helper(self, thread: int) -> HelperModel:
        """As ``Lanes``."""
        return HelperModel(*self._of_lane(*self._helped[thread - self.helpers.start]))

    def close(self, thread: int) -> None:
        """As ``Lanes``, after the last steps of its helpers."""
        self._models.pop(thread).close()

    def end(self) -> None:
        """As ``Lanes``."""
        if self._mover:
            mover, thread = self._mover
            mover.end()
            thread.join()
            self._mover = None

    def _of_lane(self, home: int, thread: int) -> tuple[MemberProgram, np.ndarray, str, Channel, Estimates]:
        """What a model of a lane is made of."""
        lane = self._lanes.index((home, thread))
        first, last = self._borders[lane : lane + 2]
        addresses, boxes = self._mailboxes.addresses[first:last], self._mailboxes
        channel = Channel(addresses, boxes.limit, lambda number, code: boxes.error(first + number, code))
        replica = self._replica
        return self._parts[home], replica.weights, replica.precision, channel, replica.measured


def make_lanes(config: Config, world: World, replica: Replica) -> Lanes:
    """The lanes of a trainer; every member of its group calls it."""
    return GroupLanes(config, world, replica) if config.topology.group > 1 else Lanes(replica, config.topology.threads)
