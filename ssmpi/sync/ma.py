"""Model averaging, S-MA and FR-MA (ShadowSync, arXiv 2003.03477)::

    u   = (1/n) sum_i w_i          over a snapshot of every trainer's replica
    w_i = w_i + alpha (u - snapshot_i)      Local SGD: alpha = 1, fixed_rate; the default of 0.5 takes half of that step

A trainer that is out of data takes part with weight 0, so n is those that still train. When it reaches 0, all of them
leave in the same round. ``mean`` has the ways to get u: all-reduce, in place on a host, encoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ssmpi.runtime.traffic import Link
from ssmpi.sync import mean_mirrors
from ssmpi.sync.average import reduced_bytes
from ssmpi.sync.base import Synchronizer
from ssmpi.sync.codecs import merge_error
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.exchange import Exchange
from ssmpi.sync.options import DENSE, RoundOptions

if TYPE_CHECKING:
    from ssmpi.runtime.topology import Topology


@dataclass(frozen=True)
class MAOptions:
    """``[sync.ma]`` has no settings of its own."""


class MA(Synchronizer):
    """Moves towards the mean of the trainers that still train."""

    Options: ClassVar[type] = MAOptions
    in_teams = True
    no_codec = ""

    def __init__(self, options: RoundOptions, exchange: Exchange) -> None:
        super().__init__(options, exchange)
        self.idle = self.context.replicas.size == 1  # one trainer alone is its own mean

    @classmethod
    def option_error(cls, options: RoundOptions) -> str:
        """Mirrors follow the moves of what they mirror, but interpolation moves a replica by an amount that the others
        do not know.
        """
        return merge_error(options)

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """An all-reduce of each fragment with its weight, among hosts if one trainer averages those of its host; or,
        with a codec, what ``mean_mirrors`` counts.
        """
        if options.codec != DENSE:
            return mean_mirrors.cost(options, topology, parameters)
        words = parameters + (1 + cls.sends_factor) * options.fragments
        return RoundCost({Link.TRAINERS: reduced_bytes(4 * words, topology.replicas)})
