"""Whether and when rows are saved for partial recovery: what a run knows about the costs of recovery, an embedding PS's
schedule, and the first trainer's decision whether saves continue.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ssmpi.data.schema import read_manifest
from ssmpi.runtime.files.log import log
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.settings import SECONDS
from ssmpi.state.checkpoint.rows.saver import SaveSchedule
from ssmpi.state.recovery.choice import FULL, PARTIAL
from ssmpi.state.recovery.explain import summary
from ssmpi.state.recovery.inputs import (
    ESTIMATED,
    HOUR,
    MEASURED,
    SETTING,
    KnownInputs,
    Source,
    collect,
    estimated,
    from_run,
    from_settings,
    inputs_of,
)
from ssmpi.state.recovery.policy import LEAST_INTERVAL, Decision, Mode, compare_at, partial
from ssmpi.state.recovery.state import RecoveryState

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.embedding.local_tables import LocalTables
    from ssmpi.embedding.transport import RemoteTables

DECISION_SECONDS = 10.0  # from one decision to the next
COSTS = "save_seconds", "row_save_seconds", "row_save_wall_seconds"  # inputs of the policy


def expected_examples(config: Config) -> int:
    """The examples of the whole run."""
    return read_manifest(Path(config.data.folder)).split(config.data.train_split).rows * config.data.passes


def schedule_of(config: Config, fraction: float, most_samples: float = math.inf) -> SaveSchedule:
    """When a PS saves this fraction of its rows: at the interval of CPR's policy, and after ``most_samples``."""
    given = {"total_seconds": SECONDS / HOUR, **from_settings(config.recovery)}
    servers = config.topology.embedding_ps

    def interval(seconds: float) -> float:
        return partial(inputs_of(servers, {**given, "row_save_wall_seconds": seconds})).interval

    return SaveSchedule(fraction, interval, LEAST_INTERVAL, most_samples)


class PolicyInputs:
    """What is known about a run. Its files are read only in the constructor, ``recoveries.json`` again in ``refresh``,
    which may run on another thread: queries never wait for a disk.
    """

    def __init__(self, config: Config) -> None:
        self._config, self._run = config, Path(config.run.folder)
        self._examples = expected_examples(config)
        size = config.placement(read_manifest(Path(config.data.folder))).most_rows * config.rows.row_bytes
        self._estimated = Source(ESTIMATED, estimated(size, background=config.checkpoint.background))
        self.refresh()

    def refresh(self) -> None:
        """Read the durations of row saves and recoveries so far."""
        self._record = RecoveryState(self._run).record()

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
            Source(MEASURED, self._measured(numbers)),
            Source(SETTING, from_settings(self._config.recovery)),
        )

    def _measured(self, numbers: Mapping[str, float]) -> dict[str, float]:
        record = self._record
        return from_run(numbers, self._examples, record.recoveries, record.row_save_cost, record.row_save_seconds)


class Numbers(Protocol):
    """The metric logger, as far as the policy needs it."""

    def numbers(self) -> Mapping[str, float]:
        """What it has added up."""


class RowSaveLog(Protocol):
    """The run's results, as far as row saves need them; the first trainer has them."""

    @property
    def logbook(self) -> Numbers:
        """Its metric logger."""

    def rows_saved(self, lines: Sequence[dict[str, Any]], recorded: Callable[[], object] | None = None) -> None:
        """Log saves, record their durations on another thread, and then call ``recorded`` there."""


class RowSaves:
    """The first trainer's side of row saves: it logs them and, with ``recovery.mode = "auto"``, lets them continue only
    while the policy wants that, by the run's measurements so far. If memory ends with its rank nothing is saved or
    decided. Trainers without ``results`` do nothing. The first one must answer requests for blocks meanwhile, so this
    accesses no disk: a background thread of the ``results`` does.
    """

    def __init__(
        self, config: Config, transport: LocalTables | RemoteTables, results: RowSaveLog | None, recovery: RecoveryState
    ) -> None:
        self._transport, self._results, self._recovery = transport, results, recovery
        kept = config.topology.embedding_ps > 0 and not isinstance(recovery.memory, ProcessMemory)
        self._inputs = PolicyInputs(config) if results and kept and config.recovery.mode == "auto" else None
        self._mode, self._decided = recovery.mode, -math.inf
        self._origins: list[str] = []
        if results and self._inputs and not recovery.mode:
            self._record_plan(config, self._inputs, results.logbook.numbers())

    def exchange(self, examples: int) -> None:
        """Tell the embedding PSs the number of samples and whether to save; log what they have saved."""
        if not self._results:
            return
        if self._inputs and time.monotonic() - self._decided >= DECISION_SECONDS:
            self._decide(*self._inputs.compare(self._results.logbook.numbers(), self._mode))
        if lines := self._transport.exchange_status(examples, self._mode != FULL):
            self._results.rows_saved(lines, self._inputs.refresh if self._inputs else None)

    @staticmethod
    def _record_plan(config: Config, known: PolicyInputs, numbers: Mapping[str, float]) -> None:
        """Note in the log file how the run would recover from the loss of an embedding PS's memory."""
        if why := config.recovery.why_always_full(config.topology.embedding_ps):
            log.debug(f"if the memory of an embedding PS is lost, recovery is full: {why}")
            return
        found, decided = known.compare(numbers, None)
        rows = "beside checkpoints" if decided.mode == PARTIAL else "in checkpoints alone"
        log.debug(
            "if the memory of an embedding PS is lost, recovery is partial up to a PLS of"
            f" {config.recovery.target_pls:g}, else full; rows are saved {rows}: {summary(decided)} (recovery.mode ="
            f" 'auto'; {found.describe()}; 'ssmpi plan --recovery' shows the formulas)"
        )

    def _decide(self, known: KnownInputs, found: Decision) -> None:
        """Note the decision if it has changed, and the first time that it is based on measured costs."""
        origins = [known.origins[name] for name in COSTS]
        if found.mode != self._mode:
            self._recovery.note_mode(found.mode)
        before, self._mode, self._decided = self._mode or PARTIAL, found.mode, time.monotonic()
        seen, self._origins = self._origins or origins, origins
        if found.mode != before or origins != seen:
            what = "save rows" if found.mode == PARTIAL else "save no rows"
            now = " from now on" * (found.mode != before)
            log.debug(f"the embedding PSs {what} beside checkpoints{now}: {summary(found)} ({known.describe()})")
