"""What every synchronization algorithm has in common. An algorithm says what a round does to vectors; its ``exchange``
knows how they travel, and ``pace`` decides when rounds run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ssmpi.runtime.protocols import DenseStep, RowTransport
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.exchange import Exchange
from ssmpi.sync.options import RoundOptions

if TYPE_CHECKING:
    from ssmpi.runtime.topology import Topology

SYNC_PS, ALL_TRAINERS, ANOTHER_TRAINER = "the sync PSs", "all trainers", "another trainer"


class Synchronizer:
    """One algorithm on one trainer, or on one of its worker threads.

    Every trainer calls ``round`` while it trains, then ``close`` once; ``model`` is then the same on all of them.
    Rounds exchange the fragments of the vector in turn (Streaming DiLoCo, arXiv 2501.18512).
    """

    Options: ClassVar[type]
    partner: ClassVar[str] = ALL_TRAINERS  # the other side of a round; empty: nobody
    in_teams: ClassVar[bool] = False  # one trainer may run the rounds of all trainers of its host
    sends_factor = False  # the mean is also taken of the trainers' learning-rate factors
    no_codec: ClassVar[str] = "exchanges weights, and a codec leaves out most of what it is given"  # empty: takes one
    steps_elsewhere = False  # sync PSs step their shards of the weights by pushed sums of gradients
    in_the_step = False  # runs inside the optimizer's step, so that a pace has no rounds to run

    def __init_subclass__(cls) -> None:
        """Shared memory and codecs move replicas towards what an exchange finds. An algorithm that overrides ``refer``
        moves them elsewhere: it uses neither, unless its class says that it may.
        """
        if "refer" in vars(cls):
            cls.in_teams = vars(cls).get("in_teams", False)
            cls.no_codec = vars(cls).get("no_codec", cls.no_codec or Synchronizer.no_codec)

    def __init__(self, options: RoundOptions, exchange: Exchange) -> None:
        self.options, self.exchange, self.context = options, exchange, exchange.context
        self.weights, self.fragments = exchange.weights, exchange.fragments
        self.rows: RowTransport | None = self.context.local.rows.transport  # of worker threads
        self.idle = False  # rounds would change nothing, so that none need to run
        self._turn = 0

    @classmethod
    def option_error(cls, options: RoundOptions) -> str:
        """Why these ``[sync]`` settings are invalid for this algorithm, and a remedy; empty if they are valid."""
        return ""

    @classmethod
    def topology_error(cls, topology: Topology) -> str:
        """Why this algorithm cannot run on this topology and what to set; empty if it can."""
        if cls.partner != SYNC_PS or topology.sync_ps:
            return ""
        return "keeps its center on sync PSs: set topology.sync_ps = 1 or more"

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """What rounds of a vector of ``parameters`` cost with these settings."""
        return RoundCost()

    def round(self, active: bool = True) -> bool:
        """Exchange a fragment with the others and merge the result into the live weights; with ``active`` False follow
        them with weight 0. False if no trainer was active any more.
        """
        local = self.context.local
        began, done = time.monotonic(), local.steps
        moved = self.exchange.round(self.next_fragment(), active, self.refer)
        if moved and active:
            self.exchange.count(time.monotonic() - began, float(local.steps - done))
        return moved

    def refer(self, found: np.ndarray, fragment: int) -> np.ndarray:
        """The reference that replicas move towards, from what the exchange of a fragment gave; here the same."""
        return found

    def close(self) -> None:
        """This trainer has no more data in this part of the run: keep taking part until no trainer has."""
        self.exchange.end()
        if self.exchange.leave(lambda: self.round(active=False)):
            self.last_rounds()
            self.exchange.conclude()

    def model(self) -> np.ndarray:
        """The weights that are evaluated and saved (parameters,), the same on every trainer. Call after ``close``."""
        return self.exchange.model()

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint must hold of the algorithm besides the replica and ``model()``: arrays by name."""
        return self.exchange.state()

    def resume(self, saved: Mapping[str, np.ndarray]) -> None:
        """Restore ``state`` on an algorithm that was constructed with the saved model. This may move the replica to
        where a new replica would start.
        """
        self.exchange.resume(saved)

    def common(self) -> list[np.ndarray]:
        """Live arrays that are equal on every trainer between two rounds, with the same sizes in the same order."""
        return []

    def optimizer(self, thread: int) -> DenseStep:
        """The optimizer that a worker thread calls ``step(model, factor)`` on: the trainer's, unless the algorithm
        wraps it.
        """
        return self.context.local.optimizer

    def restart(self) -> None:
        """All trainers have equal weights after their warm-up: start from these instead of the initial ones."""
        self.exchange.restart()

    def next_fragment(self) -> int:
        """The fragment whose turn it is."""
        fragment = self._turn % len(self.fragments)
        self._turn += 1
        return fragment

    def last_rounds(self) -> None:
        """Rounds after the last one of a part, once no trainer trains any more."""
