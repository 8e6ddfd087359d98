"""Inputs of the policy from a run's measurements, and from its run file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ssmpi.recovery.defaults import HOUR, INPUTS

if TYPE_CHECKING:
    from ssmpi.core.run_options import RecoveryOptions


def from_settings(options: RecoveryOptions) -> dict[str, float]:
    """The inputs in the run file, in the form of ``inputs_of``."""
    mtbf = {"mtbf_seconds": options.mtbf_hours} if options.mtbf_hours else {}
    return {"target_pls": options.target_pls, **mtbf}


def from_run(
    log: Mapping[str, float], expected: int, recoveries: Sequence[Mapping[str, Any]], row_save_cost: float = 0.0,
    row_save_wall: float = 0.0,
) -> dict[str, float]:  # fmt: skip
    """What a run has measured so far, in the form of ``inputs_of``: ``log`` are the numbers of its metric logger,
    ``expected`` the total examples of the run, ``recoveries`` those of ``recoveries.json``; ``row_save_cost`` is the
    cost of a save of all rows during training, ``row_save_wall`` its duration, 0 before the first one.
    """
    found = {}
    if log.get("examples") and log.get("seconds"):
        found["total_seconds"] = log["seconds"] / log["examples"] * expected / HOUR
    if log.get("checkpoints") and log.get("O_save"):
        found["save_seconds"] = log["O_save"] / log["checkpoints"]
    if row_save_cost:
        found["row_save_seconds"] = row_save_cost
    if row_save_wall:
        found["row_save_wall_seconds"] = row_save_wall
    seconds = [each["seconds"] for each in recoveries]
    if restarts := [each["ranks"] + each.get("restore", 0.0) for each in seconds if each.get("ranks")]:
        found["restart_seconds"] = fmean(restarts)
    if loads := [each["load"] for each in seconds if each.get("load")]:
        found["load_seconds"] = fmean(loads)
    return {name: value for name, value in found.items() if 0 < value <= INPUTS[name].most}  # hosts' clocks may differ
