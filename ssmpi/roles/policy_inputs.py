"""What a run knows of the costs of recovery, for the policy that decides between full and partial recovery."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.checkpoint import store
from ssmpi.core.log import log
from ssmpi.data.schema import read_manifest
from ssmpi.embedding.placement import place
from ssmpi.recovery.choice import in_short
from ssmpi.recovery.defaults import estimated
from ssmpi.recovery.known import ESTIMATED, MEASURED, SETTING, KnownInputs, Source, known
from ssmpi.recovery.measured import from_run, from_settings
from ssmpi.recovery.policy import Decision, decide
from ssmpi.report import recoveries
from ssmpi.roles.kept_state import RUN

if TYPE_CHECKING:
    from ssmpi.comm.rank_memory import RankMemory
    from ssmpi.config import Config


def decision(config: Config, memory: RankMemory | None) -> Decision:
    """What the policy says now, by what the run has measured as the first trainer's memory has it."""
    noted = memory.noted(RUN) if memory else None
    return decide(by_numbers(config, noted["logbook"] if noted else {}).inputs)


def say(config: Config, checkpoint: Path | None) -> None:
    """Log how the loss of an embedding PS's memory would be recovered from, at the start of a run."""
    if config.recovery.mode != "auto" or not config.topology.embedding_ps:
        return
    found = by_numbers(config, store.read_manifest(checkpoint).state["logbook"] if checkpoint else {})
    decided = decide(found.inputs)
    log.info(
        f"if the memory of an embedding PS is lost, recovery is {decided.mode}: {in_short(decided)} (recovery.mode ="
        f" 'auto'; {found.describe()}; 'ssmpi plan --recovery' shows the formulas)"
    )


def by_numbers(config: Config, numbers: Mapping[str, float]) -> KnownInputs:
    """What is known by the ``numbers`` of the run's log book; those of its folder are read anew."""
    run, servers, data = Path(config.run.folder), config.topology.embedding_ps, config.data
    rows, most = _rows(Path(data.folder), data.train_split, servers)
    earlier, cost = recoveries.read(run)["recoveries"], recoveries.row_save_cost(run)
    return known(
        servers,
        Source(ESTIMATED, estimated(most * config.rows.row_bytes, background=config.checkpoint.background)),
        Source(MEASURED, from_run(numbers, rows * data.passes, earlier, cost)),
        Source(SETTING, from_settings(config.recovery)),
    )


@lru_cache(maxsize=1)
def _rows(data: Path, split: str, servers: int) -> tuple[int, int]:
    """Rows to train on in a pass, and embedding rows of the PS that holds most. Nobody changes a data set in use."""
    manifest = read_manifest(data)
    return manifest.split(split).rows, place(manifest.cardinalities, servers).most_rows
