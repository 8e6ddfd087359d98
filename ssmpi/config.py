"""One run: every component's settings composed. A run file holds what differs from the defaults; the resolved file in
the run folder is itself a run file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ssmpi import sync
from ssmpi.comm.waiting import WaitOptions
from ssmpi.core import settings
from ssmpi.core.errors import SettingsError
from ssmpi.core.settings import COUNT, EXAMPLES, SECONDS, positive, require, within
from ssmpi.core.topology import Topology
from ssmpi.data.reader import DataOptions
from ssmpi.data.schema import DENSE_FEATURES, SPARSE_FEATURES
from ssmpi.embedding import table
from ssmpi.model.network import Inputs, Network
from ssmpi.model.options import DenseOptions, ModelOptions, Schedule
from ssmpi.model.zoo import network_of

SHORTEST = (
    "the shortest run file is the line 'data.folder = \"FOLDER\"', which names a folder that 'ssmpi-prepare' made; "
    "README.md has a longer one under 'Run files'"
)
NO_SPLIT = "none"  # as the name of a split in ``[evaluate]``


@dataclass(frozen=True)
class Run:
    """The ``[run]`` section: where results go, and how often they are written.

    ``log_seconds`` is the time between lines of ``metrics.jsonl``. ``record_losses`` keeps every batch's loss, for
    comparing runs bit by bit.
    """

    folder: str = "runs/run"
    seed: int = 1
    log_seconds: float = 5.0
    tensorboard: bool = True
    record_losses: bool = False

    def __post_init__(self) -> None:
        require(bool(self.folder), "folder must not be empty")
        require(0 <= self.seed < 2**31, f"seed must be in [0, 2^31), got {self.seed}")
        positive("log_seconds", self.log_seconds, SECONDS)


@dataclass(frozen=True)
class EvaluateOptions:
    """The ``[evaluate]`` section.

    ``split`` is scored ``per_pass`` times in each pass, ``final`` once at the end; ``none`` is none. The default ones
    are left out where the data set does not have them. ``replica`` also scores the first trainer's own replica at the
    end.

    ``keep`` is which model the run leaves: the ``last``, or the ``best``, of the evaluation of ``split`` with the
    lowest NE. Training ends early after ``patience`` evaluations of ``split`` in a row without gain, which is an NE
    that is more than ``min_gain`` lower than at the last gain, and as soon as the AUC of ``split`` is ``stop_at_auc``;
    0 means never.
    """

    split: str = "validation"
    final: str = "test"
    per_pass: int = 1
    batch_size: int = 2048
    replica: bool = False
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
    """

    every_minutes: float = 30.0
    every_examples: int = 0
    keep: int = 2
    background: bool = True
    stop_budget_seconds: float = 60.0
    limit_seconds: float = 3600.0

    def __post_init__(self) -> None:
        within("every_minutes", self.every_minutes, 0.0, SECONDS)
        within("every_examples", self.every_examples, 0, EXAMPLES)
        within("keep", self.keep, 1, COUNT)
        positive("stop_budget_seconds", self.stop_budget_seconds, SECONDS)
        positive("limit_seconds", self.limit_seconds, SECONDS)


@dataclass(frozen=True)
class RecoveryOptions:
    """The ``[recovery]`` section: what ``ssmpi launch`` does when ranks are killed.

    With ``mode = "auto"`` the state of every rank lies in ``memory_folder``, a memory file system of its host, and the
    job is started again at once: each rank goes on with what it finds there. Where memory is lost too, all ranks go
    back to the newest checkpoint. A job that was started again ``max_restarts`` times within ``within_minutes`` ends
    (exit code 86), as the first loss ends one with ``"off"``.
    """

    mode: Literal["auto", "off"] = "auto"
    memory_folder: str = "/dev/shm"
    max_restarts: int = 10
    within_minutes: float = 60.0

    def __post_init__(self) -> None:
        require(Path(self.memory_folder).is_absolute(), f"memory_folder is an absolute path, got {self.memory_folder}")
        within("max_restarts", self.max_restarts, 0, COUNT)
        positive("within_minutes", self.within_minutes, SECONDS)


@dataclass(frozen=True)
class Config:
    """All sections of a run file."""

    data: DataOptions
    run: Run = field(default_factory=Run)
    topology: Topology = field(default_factory=Topology)
    model: ModelOptions = field(default_factory=ModelOptions)
    embedding: table.EmbeddingOptions = field(default_factory=table.EmbeddingOptions)
    dense: DenseOptions = field(default_factory=DenseOptions)
    schedule: Schedule = field(default_factory=Schedule)
    sync: sync.Options = field(default_factory=sync.Options)
    evaluate: EvaluateOptions = field(default_factory=EvaluateOptions)
    checkpoint: CheckpointOptions = field(default_factory=CheckpointOptions)
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)
    waiting: WaitOptions = field(default_factory=WaitOptions)

    def __post_init__(self) -> None:
        parameters = self.network.parameters
        require(
            self.sync.fragments <= parameters,
            f"sync.fragments = {self.sync.fragments:,} is more than the {parameters:,} parameters of the dense model",
        )
        try:
            sync.check_topology(self.sync, self.topology)
        except ValueError as error:
            raise SettingsError(str(error)) from None

    @cached_property
    def network(self) -> Network:
        """What the trainers train, over the features of the data."""
        return network_of(self.model, Inputs(DENSE_FEATURES, SPARSE_FEATURES, self.embedding.dim))

    @cached_property
    def rows(self) -> table.RowOptions:
        """The embedding rows, as the network wants them."""
        return table.RowOptions(self.embedding, self.network.rows)

    def flat(self) -> dict[str, Any]:
        """All settings by their names, ``section.key``."""
        return settings.flat(dataclasses.asdict(self))


def differences(before: Config, now: Config) -> list[str]:
    """Settings that differ, as text; the run folder and the spelling of the data path are ignored."""
    was, are = (config.flat() for config in (before, now))
    for values in (was, are):
        values["run.folder"], values["data.folder"] = "", str(Path(values["data.folder"]).resolve())
    return [f"{name} was {was.get(name)!r}, now {are[name]!r}" for name in are if was.get(name) != are[name]]


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a run file with overrides; SettingsError says what is wrong with it."""
    try:
        return settings.load(Config, path, overrides)
    except settings.UnsetError as error:
        raise SettingsError(f"{error}; {SHORTEST}") from None
