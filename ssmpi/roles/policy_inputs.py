"""What a run knows of the costs of recovery, for the policy that decides between full and partial recovery."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.checkpoint import store
from ssmpi.core.log import log
from ssmpi.data.schema import read_manifest
from ssmpi.recovery.choice import in_short
from ssmpi.recovery.measured import from_run, inputs
from ssmpi.recovery.policy import Decision, decide
from ssmpi.report import recoveries
from ssmpi.roles.kept_state import RUN

if TYPE_CHECKING:
    from ssmpi.comm.rank_memory import RankMemory
    from ssmpi.config import Config


def decision(config: Config, memory: RankMemory | None) -> Decision:
    """What the policy says now, by what the run has measured as the first trainer's memory has it."""
    noted = memory.noted(RUN) if memory else None
    return by_numbers(config, noted["logbook"] if noted else {})


def say(config: Config, checkpoint: Path | None) -> None:
    """Log how the loss of an embedding PS's memory would be recovered from, at the start of a run."""
    if config.recovery.mode != "auto" or not config.topology.embedding_ps:
        return
    found = by_numbers(config, store.read_manifest(checkpoint).state["logbook"] if checkpoint else {})
    log.info(
        f"if the memory of an embedding PS is lost, recovery is {found.mode}: {in_short(found)} (recovery.mode ="
        " 'auto'; 'ssmpi plan --recovery' shows the formulas)"
    )


def by_numbers(config: Config, numbers: Mapping[str, float]) -> Decision:
    """The same by the ``numbers`` of the run's log book; those of its folder are read anew."""
    rows, run = read_manifest(Path(config.data.folder)).split(config.data.train_split).rows, Path(config.run.folder)
    earlier, cost = recoveries.read(run)["recoveries"], recoveries.row_save_cost(run)
    measured = from_run(numbers, rows * config.data.passes, earlier, cost)
    return decide(inputs(config.recovery, config.topology.embedding_ps, measured))
