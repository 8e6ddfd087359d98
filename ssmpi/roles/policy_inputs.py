"""What a run knows about the costs of recovery, for the policy that decides between full and partial recovery."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.checkpoint import store
from ssmpi.data.schema import read_manifest
from ssmpi.embedding.placement import place
from ssmpi.files.log import log
from ssmpi.recovery.after_loss import summary
from ssmpi.recovery.inputs import (
    ESTIMATED,
    MEASURED,
    SETTING,
    KnownInputs,
    Source,
    collect,
    estimated,
    from_run,
    from_settings,
)
from ssmpi.recovery.policy import Decision, Mode, compare_at
from ssmpi.report import recoveries

if TYPE_CHECKING:
    from ssmpi.config import Config

DECIDED = "decided"  # the name of the first trainer's note of the recovery mode


def expected_examples(config: Config) -> int:
    """The examples of the whole run."""
    return read_manifest(Path(config.data.folder)).split(config.data.train_split).rows * config.data.passes


def say(config: Config, checkpoint: Path | None) -> None:
    """At the start of a run, log how it would recover from the loss of an embedding PS's memory."""
    if config.recovery.mode != "auto" or not config.topology.embedding_ps:
        return
    if why := config.recovery.why_always_full(config.topology.embedding_ps):
        log.info(f"if the memory of an embedding PS is lost, recovery is full: {why}")
        return
    numbers = store.read_manifest(checkpoint).state["logbook"] if checkpoint else {}
    found, decided = PolicyInputs(config).compare(numbers, None)
    rows = "rows are saved beside checkpoints" if decided.mode == "partial" else "rows are saved in checkpoints alone"
    log.info(
        "if the memory of an embedding PS is lost, recovery is partial up to a PLS of"
        f" {config.recovery.target_pls:g}, else full; {rows}: {summary(decided)} (recovery.mode = 'auto';"
        f" {found.describe()}; 'ssmpi plan --recovery' shows the formulas)"
    )


class PolicyInputs:
    """What is known about a run. Its files are read only in the constructor, ``recoveries.json`` again in ``refresh``,
    which may run on another thread: queries never wait for a disk.
    """

    def __init__(self, config: Config) -> None:
        self._config, self._run = config, Path(config.run.folder)
        self._examples = expected_examples(config)
        cardinalities = read_manifest(Path(config.data.folder)).cardinalities
        size = place(cardinalities, config.topology.embedding_ps).most_rows * config.rows.row_bytes
        self._estimated = Source(ESTIMATED, estimated(size, background=config.checkpoint.background))
        self.refresh()

    def refresh(self) -> None:
        """Read the durations of row saves and recoveries so far."""
        self._taken = recoveries.taken(self._run)

    def compare(self, numbers: Mapping[str, float], before: Mode | None) -> tuple[KnownInputs, Decision]:
        """What is known, and what follows for row saves at the run's own interval of checkpoints."""
        known, options = self.by_numbers(numbers), self._config.checkpoint
        between = options.seconds_between(self._examples / known.inputs.total_seconds)
        return known, compare_at(known.inputs, between, always=options.priority != "none", before=before)

    def by_numbers(self, numbers: Mapping[str, float]) -> KnownInputs:
        """What is known, with the ``numbers`` of the metric logger."""
        return collect(
            self._config.topology.embedding_ps,
            self._estimated,
            Source(MEASURED, from_run(numbers, self._examples, *self._taken)),
            Source(SETTING, from_settings(self._config.recovery)),
        )
