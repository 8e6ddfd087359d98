"""The sections of a run file that no component owns: results, evaluation, checkpoints, recovery."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ssmpi.runtime.settings import COUNT, EXAMPLES, SECONDS, positive, printable, require, within

NO_SPLIT = "none"  # as the name of a split in ``[evaluate]``


@dataclass(frozen=True)
class RunOptions:
    """The ``[run]`` section: where results go, how often they are written, which run to continue."""

    folder: str = "runs/run"
    """Run folder: settings, logs, metrics, checkpoints, model and result."""
    seed: int = 1
    """Seed of initial weights, of shuffling and of sampling. One trainer with one thread repeats to the bit."""
    log_seconds: float = 5.0
    """Seconds between two lines of ``metrics.jsonl``."""
    tensorboard: bool = True
    """Also write TensorBoard events, if the extra ``tensorboard`` is installed."""
    record_losses: bool = False
    """Write the loss of every batch to ``losses-N.npy``, to compare runs bit by bit."""
    shared_memory: bool = True
    """Ranks of one host read and update rows, replicas and centers in shared memory; ``false``: they use messages, as
    between hosts. Results are the same.
    """
    continue_from: str = ""
    """Finished run whose model and optimizer state this run starts with, on other data. Schedule and passes are this
    run's own.
    """
    fresh_optimizer: bool = False
    """Start with the weights of ``continue_from`` and with new optimizer state."""

    @property
    def path(self) -> Path:
        """The run folder."""
        return Path(self.folder)

    def __post_init__(self) -> None:
        require(bool(self.folder), "folder must not be empty")
        printable("folder", self.folder)
        require(0 <= self.seed < 2**31, f"seed must be in [0, 2^31), got {self.seed}")
        positive("log_seconds", self.log_seconds, SECONDS)
        require(
            bool(self.continue_from) or not self.fresh_optimizer,
            "fresh_optimizer leaves out the optimizer state of the run that is continued: set run.continue_from too",
        )


@dataclass(frozen=True)
class EvaluateOptions:
    """The ``[evaluate]`` section: which rows are scored when, and whether scores end training."""

    REMOVED: ClassVar = {
        "replica": (False, "leave it out; what a round leaves between replicas is 'divergence' in metrics.jsonl"),
        "stop_at_auc": (0.0, "leave it out; evaluate.patience ends training once scores stop improving"),
    }

    split: str = "validation"
    """Split to score during training, or ``none``. The default has no effect if the data lacks this split."""
    final: str = "test"
    """Split to score once at the end, or ``none``. The default has no effect if the data lacks this split."""
    per_pass: int = 1
    """Evaluations of ``split`` in each pass."""
    batch_size: int = 2048
    """Rows scored at a time."""
    progressive: bool = False
    """Score each part of the first pass with the common model before training on it. Parts then follow each other in
    the order of the rows, and ``data.shuffle`` permutes within a part.
    """
    metric: Literal["ne", "auc"] = "ne"
    """Metric of ``split`` that decides: ``ne``, lower is better, or ``auc``. It counts for ``keep``, ``patience`` and
    ``schedule.plateau_factor``.
    """
    keep: Literal["last", "best"] = "last"
    """Which model the run keeps: the ``last`` one, or the ``best`` one, by ``metric``."""
    patience: int = 0
    """End training after this many evaluations of ``split`` in a row without a gain; 0: never."""
    min_gain: float = 0.0
    """An evaluation is a gain if ``metric`` has improved by more than this since the last gain (a difference, not a
    share).
    """

    def __post_init__(self) -> None:
        within("per_pass", self.per_pass, 1, 100_000)
        within("batch_size", self.batch_size, 1, COUNT)
        within("patience", self.patience, 0, COUNT)
        require(0 <= self.min_gain < 1, f"min_gain must be in [0, 1), got {self.min_gain}")


@dataclass(frozen=True)
class CheckpointOptions:
    """The ``[checkpoint]`` section: when to save, and how many checkpoints to keep.

    Under ``ssmpi launch``, each embedding PS also saves its rows during training, for partial recovery: all rows once
    every T_save, unless a checkpoint is newer. T_save follows from ``recovery.target_pls``, both on average over losses
    and for a single one. The smallest tables, with 1 % of all rows, are saved whole.
    """

    REMOVED: ClassVar = {"priority_period": (2, "leave it out; 'ssu' samples one access in two")}

    every_minutes: float = 30.0
    """Minutes from one checkpoint to the next; 0: none by time."""
    every_examples: int = 0
    """Examples, over all trainers, from one checkpoint to the next; 0: none by examples. Whichever comes first counts.
    """
    keep: int = 2
    """How many of the newest checkpoints to keep."""
    background: bool = True
    """An embedding PS copies its rows and writes the copy while training continues. Without this, or without memory for
    the copy, training waits.
    """
    stop_budget_seconds: float = 60.0
    """Seconds that a stopping run may take to save before it gives up."""
    limit_seconds: float = 3600.0
    """Seconds that any other save may take."""
    priority: Literal["none", "mfu", "ssu", "scar"] = "none"
    """Rows that an embedding PS saves first for partial recovery: ``none``, all in turn; ``mfu``, the most frequently
    accessed; ``ssu``, those in a sample of half of the accesses; ``scar``, the most changed (needs memory for a copy of
    the weights).
    """
    priority_fraction: float = 0.125
    """Share of the rows in a save by ``priority``, which then takes place after this share of the interval."""

    def __post_init__(self) -> None:
        within("every_minutes", self.every_minutes, 0.0, SECONDS)
        within("every_examples", self.every_examples, 0, EXAMPLES)
        within("keep", self.keep, 1, COUNT)
        positive("priority_fraction", self.priority_fraction, 1.0)
        positive("stop_budget_seconds", self.stop_budget_seconds, SECONDS)
        positive("limit_seconds", self.limit_seconds, SECONDS)

    def seconds_between(self, rate: float) -> float:
        """Seconds from one checkpoint to the next at a ``rate`` of examples a second; infinity if there are none."""
        by_time = 60 * self.every_minutes or math.inf
        return min(by_time, self.every_examples / rate or math.inf)


@dataclass(frozen=True)
class RecoveryOptions:
    """The ``[recovery]`` section: what ``ssmpi launch`` does when ranks are killed.

    The state of every rank lies in memory that outlives its process. The job restarts at once, and each rank resumes
    from its memory. If the first trainer's memory is lost, recovery is always full. ``target_pls`` and ``mtbf_hours``
    also determine how often embedding PSs save rows; with ``"auto"`` each start decides whether that costs less than
    full recovery. Restarts without progress wait longer each time, up to 5 min.
    """

    mode: Literal["auto", "full", "partial", "off"] = "auto"
    """What to do when the memory of a rank is lost too: ``partial`` reloads only the lost state, ``full`` takes all
    ranks back to the newest checkpoint, ``auto`` is partial unless the loss would bring the run's PLS above
    ``target_pls``. ``off``: the job ends at its first loss.
    """
    target_pls: float = 0.1
    """Portion of lost samples (PLS) that partial recovery may cost a run."""
    mtbf_hours: float = 0.0
    """Mean time between two losses of an embedding PS's memory; 0: unknown, 504 h / N is assumed for N of them."""
    max_lost_fraction: float = 0.5
    """Recovery is full if more than this share of the embedding PSs lost their memory."""
    memory_folder: str = "/dev/shm"
    """Memory file system on each host for the state of its ranks."""
    max_restarts: int = 10
    """The job ends (exit code 86) after this many restarts within ``within_minutes``, or as many without progress."""
    within_minutes: float = 60.0
    """Minutes over which ``max_restarts`` counts."""

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
