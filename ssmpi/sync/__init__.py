"""Synchronization of dense replicas: one algorithm, one file, one paper; ``exchanges`` chooses how vectors meet, and
``pace`` decides when rounds run.

A new algorithm is a file beside these and a line in ``ALGORITHMS``; both paces and the contract tests pick it up.
"""

from __future__ import annotations

from dataclasses import field, make_dataclass
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.core.errors import TopologyError
from ssmpi.core.settings import EXAMPLES, SECONDS, require, within
from ssmpi.core.topology import Topology
from ssmpi.sync import exchanges
from ssmpi.sync.async_ps import AsyncPS
from ssmpi.sync.base import ALL_TRAINERS, SYNC_PS, Synchronizer
from ssmpi.sync.bmuf import BMUF
from ssmpi.sync.codecs import codec_of, pull_codec_of
from ssmpi.sync.easgd import EASGD
from ssmpi.sync.gossip import Gossip
from ssmpi.sync.ma import MA
from ssmpi.sync.none import NoSync
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.pace import PACES, Pace, StartThread, make_pace, unread
from ssmpi.sync.round_context import LocalTrainer, ReplicaMemory, RoundContext, RowAccess
from ssmpi.sync.slowmo import SlowMo
from ssmpi.sync.synchronous import Synchronous
from ssmpi.sync.warmup import WarmUp

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


def _check(options: RoundOptions) -> None:
    for name, known in (("algorithm", ALGORITHMS), ("pace", PACES)):
        value = getattr(options, name)
        require(value in known, f"{name} is one of {', '.join(known)}, got {value!r}")
    require(
        options.merge in ("difference", "interpolate"), f"merge is difference or interpolate, got {options.merge!r}"
    )
    require(0 < options.alpha <= 1, f"alpha must be in (0, 1], got {options.alpha}")
    require(0 <= options.cpu_share <= 1, f"cpu_share must be in [0, 1], got {options.cpu_share}")
    within("every_iterations", options.every_iterations, 0, EXAMPLES)
    within("every_seconds", options.every_seconds, 0.0, SECONDS)
    within("fragments", options.fragments, 1, 10_000)
    within("warmup_steps", options.warmup_steps, 0, EXAMPLES)
    require(options.transport in ("auto", "messages"), f"transport is auto or messages, got {options.transport!r}")
    codec_of(options), pull_codec_of(options)
    why = ALGORITHMS[options.algorithm].no_codec if options.codec != DENSE else ""
    require(not why, f"codec = '{options.codec}': algorithm = '{options.algorithm}' {why}: set sync.codec = 'dense'")
    require(
        options.pull_codec == DENSE or options.algorithm == "async_ps",
        f"pull_codec = '{options.pull_codec}': only algorithm = 'async_ps' pulls weights: set it to 'dense'",
    )
    option_error = ALGORITHMS[options.algorithm].option_error(options)
    require(not option_error, f"algorithm = '{options.algorithm}' {option_error}")
    if options.pace == "fixed_rate" and options.algorithm != "none":
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


def check_topology(options: RoundOptions, topology: Topology) -> None:
    """Raise TopologyError if the algorithm and the number of sync PSs do not fit."""
    kind = ALGORITHMS[options.algorithm]
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
    if options.warmup_steps:
        return (
            f"sync.warmup_steps = {options.warmup_steps} makes all threads of a trainer step together, and those of a "
            "group would wait for each other: set sync.warmup_steps = 0"
        )
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
    kind = ALGORITHMS[options.algorithm]
    each = range(threads if kind.partner == SYNC_PS and options.by_thread else 1)
    found = [kind(options, exchanges.make(kind, options, weights, context, thread)) for thread in each]
    for thread in range(threads):
        found[thread % len(found)].optimizer(thread)  # its memory: what is kept of a trainer is made before it trains
    return found


def pace_of(
    synchronizers: list[Synchronizer], options: RoundOptions, threads: int, start: StartThread, share: float
) -> Pace:
    """The pace of a trainer's synchronizers, after a warm-up if there is to be one; see ``make_pace``."""
    pace = make_pace(synchronizers, options, threads, start, share)
    return WarmUp(pace, synchronizers[0], options.warmup_steps, threads) if options.warmup_steps else pace


def figures(synchronizers: list[Synchronizer]) -> dict[str, float]:
    """What a trainer reports about its rounds so far: sums over them, except for ``divergence``, which is the last one
    measured. A round covers the whole vector; if threads run their own rounds, these are means over the threads.
    ``staleness`` counts the replica's iterations between snapshot and merge.
    """
    fragments = len(synchronizers[0].fragments)
    rounds, seconds, staleness, _ = np.mean([s.exchange.tally for s in synchronizers], axis=0).tolist()
    return {
        "rounds": rounds / fragments,
        "round_seconds": seconds,
        "staleness": staleness / fragments,
        "divergence": synchronizers[0].exchange.tally[3],
    }


__all__ = [
    "ALGORITHMS",
    "ALL_TRAINERS",
    "SYNC_PS",
    "LocalTrainer",
    "Options",
    "Pace",
    "ReplicaMemory",
    "RoundContext",
    "RowAccess",
    "Synchronizer",
    "check_topology",
    "figures",
    "make",
    "pace_of",
    "unread",
]
