"""Whether the ranks of a run fit in one host's memory together, and which setting would make them fit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ssmpi.config import Config
from ssmpi.core.errors import TopologyError, UserError
from ssmpi.data.features import Features
from ssmpi.data.schema import read_manifest
from ssmpi.embedding.placement import Placement
from ssmpi.host.host_memory import memory_limit
from ssmpi.model.zoo import NETWORKS
from ssmpi.run.requirements import memory_of_ranks, placement_of

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
        raise TopologyError(f"{misfit}. 'ssmpi launch --ignore-memory' starts it all the same")


def why_not(config: Config, features: Features, placement: Placement, limit: float) -> str:
    """Why all ranks do not fit in ``limit`` bytes of one host, and what would help; empty if they fit. Dynamic tables
    have their first step.
    """
    needed = _needed(config, placement)
    if needed <= limit:
        return ""
    found = [text for name in LOWERED if (text := _lowered(config, name, features, placement, limit))]
    found += _other_networks(config, features, placement, limit)
    alone = f"{' or '.join(found)} would make it fit" if found else "no setting makes it fit alone"
    return (
        f"does not fit: all ranks together need {needed / 1e9:,.1f} GB of memory, and this host has {limit / 1e9:,.1f}:"
        f" {alone}; a site file (--site) puts the ranks on several hosts"
    )


def _needed(config: Config, placement: Placement) -> float:
    ranks = memory_of_ranks(config, placement, first=True)
    return sum(count * ranks[role] for role, count in config.topology.counts.items())


def _lowered(config: Config, name: str, features: Features, placement: Placement, limit: float) -> str:
    """The largest half, quarter and so on of a setting with which the ranks fit; empty if none does."""
    section, key = name.split(".")
    value = getattr(getattr(config, section), key) // 2
    while value:
        with contextlib.suppress(UserError):  # not a valid value
            if _needed(_changed(config, name, value).over(features), placement) <= limit:
                return f"{name} = {value}"
        value //= 2
    return ""


def _other_networks(config: Config, features: Features, placement: Placement, limit: float) -> Iterator[str]:
    """Built-in networks with which the ranks fit."""
    for other in NETWORKS:
        with contextlib.suppress(UserError):  # it does not take these features
            if _needed(_changed(config, "model.name", other).over(features), placement) <= limit:
                yield f"model.name = {json.dumps(other)}"


def _changed(config: Config, name: str, value: Any) -> Config:
    section, key = name.split(".")
    part = dataclasses.replace(getattr(config, section), **{key: value})
    return dataclasses.replace(config, **{section: part})
