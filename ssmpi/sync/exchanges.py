"""The one place that chooses how vectors meet, by algorithm, codec, pace and transport."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.runtime.mpi.service import Handler, Service
from ssmpi.sync import host_average
from ssmpi.sync.algorithms import algorithm_of
from ssmpi.sync.async_ps import AsyncPS
from ssmpi.sync.base import ANOTHER_TRAINER, SYNC_PS, Synchronizer
from ssmpi.sync.center import CenterExchange
from ssmpi.sync.center_shard import Center, MakeStep
from ssmpi.sync.elastic import ElasticCenter, MappedCenter, MirroredCenter
from ssmpi.sync.gossip import GossipOptions
from ssmpi.sync.gradient_center import GradientCenter
from ssmpi.sync.mean import EncodedMean, HostMean, ReducedMean
from ssmpi.sync.member_centers import MemberCenters
from ssmpi.sync.none import NoExchange
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.pairs import PairMean
from ssmpi.sync.push_pull import PushPull

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.rank_memory import ArrayMemory
    from ssmpi.runtime.topology import Directory, Topology
    from ssmpi.sync.exchange import Exchange
    from ssmpi.sync.round_context import RoundContext


def make(
    kind: type[Synchronizer], options: RoundOptions, weights: np.ndarray, context: RoundContext, thread: int = 0
) -> Exchange:
    """A trainer's end of the exchanges of an algorithm, or that of one of its threads. Every trainer calls it."""
    if not kind.partner:
        return NoExchange(options, weights, context)
    if kind.partner == SYNC_PS:
        return _with_center(kind, options)(options, weights, context, thread)
    if kind.partner == ANOTHER_TRAINER:
        return PairMean(options, weights, context, options.own(GossipOptions).seed)
    if options.codec != DENSE:
        return EncodedMean(options, weights, context)
    if kind.in_teams and options.pace == "shadow" and context.replicas.size > 1:
        own = context.local.replica
        if team := host_average.form(context.replicas, weights, own.host, own.memory):
            return HostMean(options, weights, context, team)
    return ReducedMean(options, weights, context, context.local.factor if kind.sends_factor else None)


def _with_center(kind: type[Synchronizer], options: RoundOptions) -> type[CenterExchange]:
    if issubclass(kind, AsyncPS):
        return PushPull
    if options.codec != DENSE:
        return MirroredCenter
    in_place = options.merge == "difference" and options.shared_memory and kind.refer is Synchronizer.refer
    return MappedCenter if in_place else CenterExchange  # interpolation must lose concurrent updates


def handler(
    options: RoundOptions, optimizer: MakeStep, service: Service, topology: Topology, clients: Directory,
    memory: ArrayMemory,
) -> Handler:  # fmt: skip
    """What a sync PS does with a message: it holds the center in its ``memory``, or one of each member of a group;
    ``clients`` has the trainers' ranks.
    """
    if topology.group == 1:
        return center(options, optimizer, service, memory).handle
    return MemberCenters(partial(center, options, optimizer, service), topology, clients, memory).handle


def center(options: RoundOptions, optimizer: MakeStep, service: Service, memory: ArrayMemory) -> Center:
    """The center of a sync PS, in its ``memory``; ``optimizer`` is for those that take optimizer steps."""
    if algorithm_of(options).steps_elsewhere:
        return GradientCenter(optimizer, options, service, memory)
    return ElasticCenter(options, service, memory)
