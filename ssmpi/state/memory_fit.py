"""Whether the ranks of a run fit in one host's memory together, and which setting would make them fit."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from ssmpi.config import Config
from ssmpi.data.features import Features
from ssmpi.data.schema import read_manifest
from ssmpi.embedding.placement import Placement
from ssmpi.model.zoo import NETWORKS
from ssmpi.runtime.errors import TopologyError, UserError
from ssmpi.runtime.host.host_memory import memory_limit
from ssmpi.state.requirements import memory_of_ranks, placement_of

LOWERED = ("data.block_rows", "data.batch_size", "embedding.dim", "topology.threads", "topology.trainers")


def check(config: Config) -> None:
    """Raise TopologyError if a run whose ranks all run on this host does not fit there. What else is wrong with the run
    is left to its ranks to report.
    """
    try:
        features = read_manifest(Path(config.data.folder)).features
        config, placement = config.over(features), placement_of(config)
    except UserError:
        return
    if misfit := why_not(config, features, placement, memory_limit()):
        raise TopologyError(f"{misfit}. 'ssmpi launch --ignore-memory' starts it anyway")


def why_not(config: Config, features: Features, placement: Placement, limit: float) -> str:
    """Why all ranks do not fit in ``limit`` bytes of one host, and what would help; empty if they fit. Dynamic tables
    have their first step.
    """

    def fits(name: str, value: object) -> bool:
        with contextlib.suppress(UserError):  # not a valid value, or a network that does not take these features
            return _needed(config.changed(name, value).over(features), placement) <= limit
        return False

    if (needed := _needed(config, placement)) <= limit:
        return ""
    choices = ((name, next((value for value in values if fits(name, value)), None)) for name, values in _less(config))
    found = [f"{name} = {json.dumps(value)}" for name, value in choices if value is not None]
    alone = f"{' or '.join(found)} would make it fit" if found else "no setting alone makes it fit"
    return (
        f"does not fit: all ranks together need {needed / 1e9:,.1f} GB of memory, and this host has {limit / 1e9:,.1f}:"
        f" {alone}; a site file (--site) puts the ranks on several hosts"
    )


def _needed(config: Config, placement: Placement) -> float:
    ranks = memory_of_ranks(config, placement, first=True)
    return sum(count * ranks[role] for role, count in config.topology.counts.items())


def _less(config: Config) -> Iterator[tuple[str, Sequence[object]]]:
    """Settings with values that may need less memory: halves, quarters and so on, the largest first; other networks."""
    settings = config.flat()
    for name in LOWERED:
        yield name, [settings[name] >> n for n in range(1, settings[name].bit_length())]
    for other in NETWORKS:
        yield "model.name", [other]
