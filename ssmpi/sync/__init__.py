"""Synchronization of dense replicas: one algorithm, one file, one paper; ``exchanges`` chooses how vectors meet, and
``pace`` decides when rounds run.

A new algorithm is a file beside these and a line in ``ALGORITHMS``, or a file of the user's own that
``sync.algorithm`` names; both paces pick it up, and the contract tests one in ``ALGORITHMS``.
"""

from __future__ import annotations

from dataclasses import field, make_dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.runtime import user_code
from ssmpi.runtime.errors import SettingsError, TopologyError
from ssmpi.runtime.settings import EXAMPLES, SECONDS, require, within
from ssmpi.runtime.topology import Topology
from ssmpi.sync import exchanges
from ssmpi.sync.algorithms import ALGORITHMS, algorithm_of, check_custom
from ssmpi.sync.base import ALL_TRAINERS, SYNC_PS, Synchronizer
from ssmpi.sync.codecs import codec_of, pull_codec_of, try_codec
from ssmpi.sync.options import DENSE, RoundOptions
from ssmpi.sync.pace import PACES, Pace, StartThread, make_pace, unread
from ssmpi.sync.round_context import LocalTrainer, ReplicaMemory, RoundContext, RowAccess
from ssmpi.sync.warmup import WarmUp


def _check(options: RoundOptions) -> None:
    algorithm, pace = options.algorithm, options.pace
    require(
        algorithm in ALGORITHMS or user_code.names_file(algorithm),
        f"algorithm is one of {', '.join(ALGORITHMS)}, or FILE.py:CLASS, got {algorithm!r}",
    )
    require(pace in PACES, f"pace is one of {', '.join(PACES)}, got {pace!r}")
    require(
        options.merge in ("difference", "interpolate"), f"merge is difference or interpolate, got {options.merge!r}"
    )
    require(0 < options.alpha <= 1, f"alpha must be in (0, 1], got {options.alpha}")
    require(0 <= options.cpu_share <= 1, f"cpu_share must be in [0, 1], got {options.cpu_share}")
    within("every_iterations", options.every_iterations, 0, EXAMPLES)
    within("every_seconds", options.every_seconds, 0.0, SECONDS)
    within("fragments", options.fragments, 1, 10_000)
    within("warmup_steps", options.warmup_steps, 0, EXAMPLES)
    if not options.own_names:
        require(
            not options.custom,
            f"custom is for algorithms of your own, and algorithm = '{algorithm}' is built in: set sync.custom = {{}}",
        )
        _check_algorithm(options)


def _check_algorithm(options: RoundOptions) -> None:
    """What depends on the algorithm and the codecs."""
    kind = algorithm_of(options)
    codec_of(options), pull_codec_of(options)
    why = kind.no_codec if options.codec != DENSE else ""
    require(not why, f"codec = '{options.codec}': algorithm = '{options.algorithm}' {why}: set sync.codec = 'dense'")
    require(
        options.pull_codec == DENSE or kind.steps_elsewhere,
        f"pull_codec = '{options.pull_codec}': only algorithm = 'async_ps' pulls weights: set it to 'dense'",
    )
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
    check_custom(loaded)
    for name in loaded.own_names.keys() - {"algorithm"}:
        try_codec(loaded, name)
    try:
        _check_algorithm(loaded)
    except SettingsError as error:
        raise SettingsError(f"sync.{error}") from None
    return loaded


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
    kind = algorithm_of(options)
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
    "algorithm_of",
    "check_topology",
    "figures",
    "make",
    "pace_of",
    "unread",
    "with_code",
]
