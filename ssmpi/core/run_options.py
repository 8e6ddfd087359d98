"""The sections of a run file that no component owns: where results go, when models are scored and saved, how lost ranks
are recovered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ssmpi.core.settings import COUNT, EXAMPLES, SECONDS, positive, require, within

NO_SPLIT = "none"  # as the name of a split in ``[evaluate]``


@dataclass(frozen=True)
class Run:
    """The ``[run]`` section: where results go, and how often they are written.

    ``log_seconds`` is the time between lines of ``metrics.jsonl``. ``record_losses`` keeps every batch's loss, for
    comparing runs bit by bit. ``continue_from`` is a finished run whose model and optimizer state this one begins with,
    on other data; with ``fresh_optimizer`` its optimizers begin anew. Schedule and passes are this run's own.
    """

    folder: str = "runs/run"
    seed: int = 1
    log_seconds: float = 5.0
    tensorboard: bool = True
    record_losses: bool = False
    continue_from: str = ""
    fresh_optimizer: bool = False

    def __post_init__(self) -> None:
        require(bool(self.folder), "folder must not be empty")
        require(0 <= self.seed < 2**31, f"seed must be in [0, 2^31), got {self.seed}")
        positive("log_seconds", self.log_seconds, SECONDS)
        require(
            bool(self.continue_from) or not self.fresh_optimizer,
            "fresh_optimizer leaves out the optimizer state of the run that is continued: set run.continue_from too",
        )


@dataclass(frozen=True)
class EvaluateOptions:
    """The ``[evaluate]`` section.

    ``split`` is scored ``per_pass`` times in each pass, ``final`` once at the end; ``none`` is none. The default ones
    are left out where the data set does not have them. ``replica`` also scores the first trainer's own replica at the
    end. With ``progressive`` the common model also scores each part of the first pass before it is trained on; parts
    then follow each other in the order of the rows, and ``data.shuffle`` permutes within them.

    ``keep`` selects the model that the run leaves: the ``last`` one, or the ``best`` one, which has the lowest NE on
    ``split``. Early stopping: training ends after ``patience`` evaluations of ``split`` in a row without a gain, where
    a gain is an NE more than ``min_gain`` (a difference of NE, not a share of it) below that of the last gain, or as
    soon as the AUC of ``split`` reaches ``stop_at_auc``; 0 disables either rule.
    """

    split: str = "validation"
    final: str = "test"
    per_pass: int = 1
    batch_size: int = 2048
    replica: bool = False
    progressive: bool = False
    keep: Literal["last", "best"] = "last"
    patience: int = 0
    min_gain: float = 0.0
    stop_at_auc: float = 0.0

    def __post_init__(self) -> None:
        within("per_pass", self.per_pass, 1, 100_000)
        within("batch_size", self.batch_size, 1, COUNT)
        within("patience", self.patience, 0, COUNT)
        require(0 <= self.min_gain < 1, f"min_gain must be in [0, 1), got {self.min_gain}")
        require(0 <= self.stop_at_auc < 1, f"stop_at_auc must be in [0, 1), got {self.stop_at_auc}")
        require(self.patience > 0 or not self.min_gain, "min_gain says what a gain is for patience: set patience too")
        if self.rule:
            require(
                self.split not in ("", NO_SPLIT),
                f"{self.rule} needs evaluations while training: set evaluate.split to a split of the data",
            )

    @property
    def rule(self) -> str:
        """A setting that decides by evaluations of ``split``; empty where none does."""
        if self.keep == "best":
            return 'keep = "best"'
        if self.patience:
            return f"patience = {self.patience}"
        return f"stop_at_auc = {self.stop_at_auc:g}" if self.stop_at_auc else ""


@dataclass(frozen=True)
class CheckpointOptions:
    """The ``[checkpoint]`` section.

    A checkpoint is due ``every_minutes`` after the last one, or ``every_examples`` over all trainers after it,
    whichever comes first; 0 means never. The newest ``keep`` stay. With ``background`` an embedding PS copies its rows
    and writes the copy while training continues; without, or where memory has no room for the copy, training waits. A
    run asked to stop saves within ``stop_budget_seconds`` or gives up; any other save has ``limit_seconds``.

    Under ``ssmpi launch``, each embedding PS also saves its rows during training, for partial recovery: all of them,
    every T_save that ``recovery.target_pls`` asks for, on average over losses and for a single one, unless a checkpoint
    is newer. With another ``priority`` than
    ``none`` a ``priority_fraction`` of them, in that fraction of T_save: those accessed most often (``mfu``), those in
    a sample of one access in ``priority_period`` (``ssu``), or those changed most (``scar``, which needs memory for a
    copy of the weights). The smallest tables, with 1 % of all rows, are saved whole.
    """

    every_minutes: float = 30.0
    every_examples: int = 0
    keep: int = 2
    background: bool = True
    stop_budget_seconds: float = 60.0
    limit_seconds: float = 3600.0
    priority: Literal["none", "mfu", "ssu", "scar"] = "none"
    priority_fraction: float = 0.125
    priority_period: int = 2

    def __post_init__(self) -> None:
        within("every_minutes", self.every_minutes, 0.0, SECONDS)
        within("every_examples", self.every_examples, 0, EXAMPLES)
        within("keep", self.keep, 1, COUNT)
        positive("priority_fraction", self.priority_fraction, 1.0)
        within("priority_period", self.priority_period, 1, COUNT)
        positive("stop_budget_seconds", self.stop_budget_seconds, SECONDS)
        positive("limit_seconds", self.limit_seconds, SECONDS)

    def seconds_between(self, rate: float) -> float:
        """Seconds from one checkpoint to the next at a ``rate`` of examples a second; infinity if there are none."""
        by_time = 60 * self.every_minutes or math.inf
        return min(by_time, self.every_examples / rate or math.inf)


@dataclass(frozen=True)
class RecoveryOptions:
    """The ``[recovery]`` section: what ``ssmpi launch`` does when ranks are killed.

    Unless ``mode = "off"`` the state of every rank lies in ``memory_folder``, a memory file system of its host, and the
    job is restarted at once: each rank resumes from its memory. Where the memory of a rank is lost too, ``"partial"``
    reloads what was lost alone, ``"full"`` takes all ranks back to the newest checkpoint, and ``"auto"`` is partial
    unless the loss would bring the run's PLS (portion of lost samples) above ``target_pls``. ``mtbf_hours`` is the mean
    time between two losses of an embedding PS's memory; 0 means unknown: 504 h / N is assumed. Recovery is full in
    any case if the first trainer's memory is lost, or that of more than ``max_lost_fraction`` of the embedding PSs. How
    often embedding PSs save rows also follows from ``target_pls`` and ``mtbf_hours``; with ``"auto"`` they pause saving
    while full recovery costs less. A job that was restarted ``max_restarts`` times within ``within_minutes``, or as
    often without training on anything new, ends (exit code 86), as does any job at its first loss with ``"off"``;
    restarts without progress wait longer each time, up to 5 min.
    """

    mode: Literal["auto", "full", "partial", "off"] = "auto"
    target_pls: float = 0.1
    mtbf_hours: float = 0.0
    max_lost_fraction: float = 0.5
    memory_folder: str = "/dev/shm"
    max_restarts: int = 10
    within_minutes: float = 60.0

    def __post_init__(self) -> None:
        positive("target_pls", self.target_pls, 1.0)
        within("mtbf_hours", self.mtbf_hours, 0.0, SECONDS / 3600)
        within("max_lost_fraction", self.max_lost_fraction, 0.0, 1.0)
        require(Path(self.memory_folder).is_absolute(), f"memory_folder is an absolute path, got {self.memory_folder}")
        within("max_restarts", self.max_restarts, 0, COUNT)
        positive("within_minutes", self.within_minutes, SECONDS)

    @property
    def may_be_partial(self) -> bool:
        """Whether the mode allows partial recovery."""
        return self.mode in ("auto", "partial")

    def most_lost(self, servers: int) -> int:
        """How many of the embedding PSs may be lost for recovery to be partial."""
        return int(self.max_lost_fraction * servers)

    def why_always_full(self, servers: int) -> str:
        """Why no loss of an embedding PS's memory allows partial recovery; empty if some does."""
        if self.most_lost(servers):
            return ""
        return f"recovery.max_lost_fraction = {self.max_lost_fraction:g} allows no lost embedding PS of {servers}"
