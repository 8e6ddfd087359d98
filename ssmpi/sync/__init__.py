"""Synchronization of dense replicas: one algorithm, one file, one paper; when rounds run is the pace's business.

A new algorithm is a file beside these and a line in ``ALGORITHMS``; both paces and the contract tests pick it up.
"""

from __future__ import annotations

from dataclasses import field, make_dataclass
from typing import TYPE_CHECKING, Any

from ssmpi.errors import TopologyError
from ssmpi.settings import require
from ssmpi.sync.base import Peers, Synchronizer
from ssmpi.sync.bmuf import BMUF
from ssmpi.sync.easgd import EASGD
from ssmpi.sync.ma import MA
from ssmpi.sync.none import NoSync
from ssmpi.sync.pace import PACES
from ssmpi.topology import Topology

ALGORITHMS: dict[str, type[Synchronizer]] = {"none": NoSync, "easgd": EASGD, "ma": MA, "bmuf": BMUF}


def _check(options: Any) -> None:
    for name, known in (("algorithm", ALGORITHMS), ("pace", PACES)):
        value = getattr(options, name)
        require(value in known, f"{name} is one of {', '.join(known)}, got {value!r}")
    require(
        options.merge in ("difference", "interpolate"), f"merge is difference or interpolate, got {options.merge!r}"
    )
    require(0 < options.alpha <= 1, f"alpha must be in (0, 1], got {options.alpha}")
    require(0 <= options.cpu_share <= 1, f"cpu_share must be in [0, 1], got {options.cpu_share}")
    require(options.by in ("thread", "trainer"), f"by is thread or trainer, got {options.by!r}")
    require(options.every_iterations >= 0, f"every_iterations must not be negative, got {options.every_iterations}")
    require(options.every_seconds >= 0, f"every_seconds must not be negative, got {options.every_seconds}")
    if options.pace == "fixed_rate" and options.algorithm != "none":
        require(
            bool(options.every_iterations) != bool(options.every_seconds),
            "pace = 'fixed_rate' needs either every_iterations or every_seconds",
        )


if TYPE_CHECKING:
    Options = Any
else:
    Options = make_dataclass(
        "Options",
        [
            ("algorithm", str, "ma"),
            ("pace", str, "shadow"),
            ("alpha", float, 0.5),
            ("merge", str, "difference"),
            ("cpu_share", float, 0.0),
            ("every_iterations", int, 0),
            ("every_seconds", float, 0.0),
            ("by", str, "thread"),
            *((name, kind.Options, field(default_factory=kind.Options)) for name, kind in ALGORITHMS.items()),
        ],
        frozen=True,
        namespace={"__post_init__": _check},
    )
    Options.__module__ = __name__
    Options.__doc__ = """The ``[sync]`` section.

    ``algorithm`` and ``pace`` choose; ``alpha`` is the elastic weight; ``merge`` how a background result meets live
    weights. ``shadow`` runs rounds back to back, resting so that the shadow thread takes at most ``cpu_share`` of a
    core; 0 means all of one where the host has a core for every thread, and 0.02 where it has not. ``fixed_rate``
    runs them in the training loop, ``every_iterations`` or ``every_seconds``; for EASGD ``by`` says whether every
    worker thread counts its own iterations (as in the paper) or one syncs for the trainer.
    """


def check_topology(options: Any, topology: Topology) -> None:
    """Raise TopologyError if the algorithm and the number of sync PSs do not fit."""
    needs = options.algorithm == "easgd"
    if needs and not topology.sync_ps:
        raise TopologyError("sync.algorithm = 'easgd' keeps its center on sync PSs: set topology.sync_ps = 1 or more")
    if topology.sync_ps and not needs:
        raise TopologyError(
            f"topology.sync_ps = {topology.sync_ps}, but sync.algorithm = '{options.algorithm}' has no use for sync PSs: "
            "set topology.sync_ps = 0"
        )


__all__ = ["ALGORITHMS", "Options", "Peers", "Synchronizer", "check_topology"]
