"""Gossip averaging in pairs, as in AD-PSGD (Lian, Zhang, Zhang, Liu, ICML 2018, arXiv 1710.06952)::

    m   = (snapshot_i + snapshot_j) / 2          j: a partner drawn at random
    w_i = w_i + alpha (m - snapshot_i)           AD-PSGD has alpha = 1; the default of 0.5 takes half of that step
    w_j = w_j + alpha (m - snapshot_j)

No server, no barrier: a pair needs no other trainer. The graph is bipartite, as in the paper, to avoid deadlock: even
trainers ask, odd trainers answer one request after the other and never wait. What one gains the other loses, so the sum
of the replicas is conserved (with ``merge = "difference"``), and their mean is the model. A trainer without more data
stops asking; it answers until all askers are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ssmpi.runtime.settings import COUNT, within
from ssmpi.runtime.traffic import Link
from ssmpi.sync.base import ANOTHER_TRAINER
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.ma import MA
from ssmpi.sync.options import RoundOptions

if TYPE_CHECKING:
    from ssmpi.runtime.topology import Topology


@dataclass(frozen=True)
class GossipOptions:
    """The ``[sync.gossip]`` section, for ``sync.algorithm = "gossip"``."""

    seed: int = 1
    """Seed for choosing partners."""

    def __post_init__(self) -> None:
        within("seed", self.seed, 0, COUNT)


class Gossip(MA):  # the model is the mean of the replicas, too
    """Moves towards the mean of itself and one other trainer."""

    Options: ClassVar[type] = GossipOptions
    partner = ANOTHER_TRAINER
    no_codec = "meets another partner each time, and would need mirrors of every one"
    in_teams = False

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """A snapshot in each direction."""
        return RoundCost({Link.TRAINERS: 4.0 * parameters})

    @classmethod
    def option_error(cls, options: RoundOptions) -> str:
        """A partner's request may come at any time."""
        if options.pace == "shadow":
            return ""
        return "answers its partners at any time, on a thread of its own: set sync.pace = 'shadow'"
