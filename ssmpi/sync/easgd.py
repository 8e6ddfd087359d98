"""Elastic averaging SGD, S-EASGD and FR-EASGD (Zhang, Choromanska, LeCun, NeurIPS 2015; ShadowSync, arXiv 2003.03477)::

    d   = alpha (w_i - c)          both lines from the old values, so that w_i + c is conserved
    w_i = w_i - d                  on the trainer, by the difference to its snapshot
    c   = c + d                    on the sync PSs, shard by shard

Centralised and asynchronous: a trainer exchanges with the center alone, and waits for no other trainer.
What n trainers learn is shared by n + 1 vectors, so all move at n / (n + 1) of the speed of model averaging: half, with
one. ``elastic`` has the ways to exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ssmpi.runtime.topology import Topology
from ssmpi.runtime.traffic import Link
from ssmpi.sync import elastic_mirrors
from ssmpi.sync.base import SYNC_PS, Synchronizer
from ssmpi.sync.codecs import merge_error
from ssmpi.sync.cost import RoundCost
from ssmpi.sync.options import DENSE, RoundOptions


@dataclass(frozen=True)
class EASGDOptions:
    """``[sync.easgd]`` has no settings of its own."""

    REMOVED: ClassVar = {"coupling": (0.0, "")}


class EASGD(Synchronizer):
    """Pulls replica and center towards each other."""

    Options: ClassVar[type] = EASGDOptions
    partner = SYNC_PS
    no_codec = ""

    @classmethod
    def option_error(cls, options: RoundOptions) -> str:
        """Mirrors follow the moves of what they mirror, but interpolation moves a replica by an amount that the other
        end does not know.
        """
        return merge_error(options)

    @classmethod
    def cost(cls, options: RoundOptions, topology: Topology, parameters: int) -> RoundCost:
        """The vector there and back; or, with a codec, what ``elastic_mirrors`` counts."""
        if options.codec == DENSE:
            return RoundCost({Link.CENTER_PUSH: 4.0 * parameters, Link.CENTER_PULL: 4.0 * parameters})
        return elastic_mirrors.cost(options, topology, parameters)

    def last_rounds(self) -> None:
        """One over the whole vector, a trainer's; no other trainer waits for it. It is dense, as is the next one."""
        self.exchange.renew()
        for _ in self.fragments if self.exchange.thread == 0 else ():
            self.round()
        self.exchange.renew()
