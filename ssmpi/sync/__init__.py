"""Synchronization of dense replicas: an algorithm, with how its vectors meet, is one file and follows one paper;
``pace`` decides when its rounds run.

A new algorithm is a file beside these and a line in ``ALGORITHMS``, or a file of the user's own that
``sync.algorithm`` names; both paces pick it up, and the contract tests one in ``ALGORITHMS``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field, make_dataclass, replace
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.runtime import user_code
from ssmpi.runtime.errors import SettingsError, TopologyError
from ssmpi.runtime.mpi.service import Handler, Service
from ssmpi.runtime.settings import EXAMPLES, SECONDS, require, within
from ssmpi.runtime.topology import Topology
from ssmpi.runtime.user_code import GUIDE
from ssmpi.sync.async_ps import AsyncPS
from ssmpi.sync.base import ALL_TRAINERS, SYNC_PS, Exchange, RoundCost, Synchronizer
from ssmpi.sync.bmuf import BMUF
from ssmpi.sync.center import Center, CenterSynchronizer, MakeStep, MemberCenters
from ssmpi.sync.easgd import EASGD
from ssmpi.sync.gossip import Gossip
from ssmpi.sync.ma import MA
from ssmpi.sync.none import NoSync
from ssmpi.sync.options import DENSE, RoundOptions, codec_of, try_codec
from ssmpi.sync.pace import PACES, Pace, StartThread, pace_of, unread
from ssmpi.sync.round_context import LocalTrainer, ReplicaMemory, RoundContext, RowAccess
from ssmpi.sync.slowmo import SlowMo
from ssmpi.sync.synchronous import Synchronous

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.rank_memory import ArrayMemory
    from ssmpi.runtime.topology import Directory

ALGORITHMS: dict[str, type[Synchronizer]] = {
    "none": NoSync,
    "easgd": EASGD,
    "ma": MA,
    "bmuf": BMUF,
    "slowmo": SlowMo,
    "gossip": Gossip,
    "async_ps": AsyncPS,
    "synchronous": Synchronous,
}


def algorithm_of(options: RoundOptions) -> type[Synchronizer]:
    """The class that ``sync.algorithm`` names, in a file of the user's own too; SettingsError if that has none."""
    if not user_code.names_file(options.algorithm):
        return ALGORITHMS[options.algorithm]
    path, name = user_code.parts(options.algorithm)
    what = "an algorithm: derive it from one, such as MA"
    return user_code.subclass(path, name, options.source("algorithm"), "sync.algorithm", Synchronizer, what)


def _check(options: RoundOptions) -> None:
    algorithm, pace = options.algorithm, options.pace
    require(
        algorithm in ALGORITHMS or user_code.names_file(algorithm),
        f"algorithm is one of {', '.join(ALGORITHMS)}, or FILE.py:CLASS, got {algorithm!r}",
    )
    require(pace in PACES, f"pace is one of {', '.join(PACES)}, got {pace!r}")
    require(0 < options.alpha <= 1, f"alpha must be in (0, 1], got {options.alpha}")
    require(0 <= options.cpu_share <= 1, f"cpu_share must be in [0, 1], got {options.cpu_share}")
    within("every_iterations", options.every_iterations, 0, EXAMPLES)
    within("every_seconds", options.every_seconds, 0.0, SECONDS)
    if not options.own_names:
        require(
            not options.custom,
            f"custom is for algorithms of your own, and algorithm = '{algorithm}' is built in: set sync.custom = {{}}",
        )
        _check_algorithm(options)


def _check_algorithm(options: RoundOptions) -> None:
    """What depends on the algorithm and the codec."""
    kind = algorithm_of(options)
    codec_of(options)
    why = kind.no_codec if options.codec != DENSE else ""
    require(not why, f"codec = '{options.codec}': algorithm = '{options.algorithm}' {why}: set sync.codec = 'dense'")
    option_error = kind.option_error(options)
    require(not option_error, f"algorithm = '{options.algorithm}' {option_error}")
    if options.pace == "fixed_rate" and kind.partner:
        require(
            bool(options.every_iterations) != bool(options.every_seconds),
            "pace = 'fixed_rate' needs either every_iterations or every_seconds",
        )


if TYPE_CHECKING:
    Options = RoundOptions
else:
    Options = make_dataclass(
        "Options",
        [
            *((name, kind.Options, field(default_factory=kind.Options)) for name, kind in ALGORITHMS.items()),
        ],
        bases=(RoundOptions,),
        frozen=True,
        namespace={"__post_init__": _check},
    )
    Options.__module__ = __name__
    Options.__doc__ = "The ``[sync]`` section: how replicas are synchronized, and when."


def with_code(options: RoundOptions) -> RoundOptions:
    """The same settings with the texts of the user's own files that they name, after executing them: ranks that get
    these settings need no files. SettingsError if a class or a setting of it is wrong.
    """
    if not options.lacks_code:
        return options
    loaded = replace(options, code=tuple((name, options.source(name)) for name in options.own_names))
    _check_custom(loaded)
    if "codec" in loaded.own_names:
        try_codec(loaded)
    try:
        _check_algorithm(loaded)
    except SettingsError as error:
        raise SettingsError(f"sync.{error}") from None
    return loaded


def _check_custom(options: RoundOptions) -> None:
    """Raise SettingsError unless ``[sync.custom]`` are settings of the user's own algorithm."""
    kind = algorithm_of(options)
    section: type = getattr(kind, "Options", NoneType)
    if not user_code.is_own(section):
        require(
            not options.custom,
            f"sync.custom has settings, but sync.algorithm = '{options.algorithm}' has no Options of its own: remove "
            f"them, or give it a dataclass Options; {GUIDE}",
        )
        return
    path = user_code.path_of(kind)
    made = f"{path}: Options of '{kind.__name__}'"
    require(dataclasses.is_dataclass(section), f"{made} is not a dataclass: put @dataclass(frozen=True) before it")
    user_code.run_user_code(path, f"'{section.__name__}'", lambda: options.own(section), GUIDE)


def check_topology(options: RoundOptions, topology: Topology) -> None:
    """Raise TopologyError if the algorithm and the number of sync PSs do not fit."""
    kind = algorithm_of(options)
    if topology_error := kind.topology_error(topology):
        raise TopologyError(f"sync.algorithm = '{options.algorithm}' {topology_error}")
    if topology.sync_ps and kind.partner != SYNC_PS:
        raise TopologyError(
            f"topology.sync_ps = {topology.sync_ps}, but sync.algorithm = '{options.algorithm}' does not use sync"
            " PSs: set topology.sync_ps = 0"
        )
    if topology.group > 1 and (why := _why_not_in_groups(options, kind)):
        raise TopologyError(f"topology.group = {topology.group}: {why}, or topology.group = 1")


def _why_not_in_groups(options: RoundOptions, kind: type[Synchronizer]) -> str:
    """Why these settings do not work where several trainers hold a replica, and what to set; empty if they do. A lane
    that stands at a barrier of its trainer would keep the other members' lanes waiting, and they it.
    """
    if kind.in_the_step:
        return f"sync.algorithm = '{options.algorithm}' takes one step of whole replicas: set another algorithm"
    if kind.partner and kind.partner != SYNC_PS and options.pace == "fixed_rate":
        return (
            f"sync.pace = 'fixed_rate' stops all threads of a trainer for a round of sync.algorithm = "
            f"'{options.algorithm}', and those of a group would wait for each other: set sync.pace = 'shadow'"
        )
    return ""


def make(options: RoundOptions, weights: np.ndarray, context: RoundContext, threads: int) -> list[Synchronizer]:
    """The synchronizers of a trainer whose parameters so many ``threads`` step: one, or one for each of them, where
    they run rounds of their own.
    """
    kind = algorithm_of(options)
    number = threads if kind.partner == SYNC_PS and options.by_thread else 1
    synchronizers = [kind(options, kind.make_exchange(options, weights, context, thread)) for thread in range(number)]
    for thread in range(threads):
        synchronizers[thread % number].optimizer(thread)  # what is kept of a trainer is made before it trains
    return synchronizers


def make_center(options: RoundOptions, optimizer: MakeStep, service: Service, memory: ArrayMemory) -> Center:
    """The center of a sync PS; ``optimizer`` is for algorithms that take optimizer steps there."""
    kind = algorithm_of(options)
    assert issubclass(kind, CenterSynchronizer), f"{kind.__name__} has no sync PSs"
    return kind.make_center(options, optimizer, service, memory)


def center_handler(
    options: RoundOptions, optimizer: MakeStep, service: Service, topology: Topology, clients: Directory,
    memory: ArrayMemory,
) -> Handler:  # fmt: skip
    """What a sync PS does with a message: it holds the center in its ``memory``, or one of each member of a group;
    ``clients`` has the trainers' ranks.
    """
    if topology.group == 1:
        return make_center(options, optimizer, service, memory).handle
    return MemberCenters(partial(make_center, options, optimizer, service), topology, clients, memory).handle


def figures(synchronizers: list[Synchronizer]) -> dict[str, float]:
    """What a trainer reports about its rounds so far: sums over them, except for ``divergence``, which is the last one
    measured. If threads run their own rounds, these are means over the threads. ``staleness`` counts the replica's
    iterations between snapshot and merge.
    """
    rounds, seconds, staleness, _ = np.mean([s.exchange.tally for s in synchronizers], axis=0).tolist()
    return {
        "rounds": rounds,
        "round_seconds": seconds,
        "staleness": staleness,
        "divergence": synchronizers[0].exchange.tally[3],
    }


__all__ = [
    "ALGORITHMS",
    "ALL_TRAINERS",
    "SYNC_PS",
    "Exchange",
    "LocalTrainer",
    "Options",
    "Pace",
    "ReplicaMemory",
    "RoundContext",
    "RoundCost",
    "RoundOptions",
    "RowAccess",
    "StartThread",
    "Synchronizer",
    "algorithm_of",
    "center_handler",
    "check_topology",
    "figures",
    "make",
    "make_center",
    "pace_of",
    "unread",
    "with_code",
]
