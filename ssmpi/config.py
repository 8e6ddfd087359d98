"""One run: every component's settings composed. A run file holds what differs from the defaults; the resolved file in
the run folder is itself a run file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ssmpi import sync
from ssmpi.checkpoint import policy
from ssmpi.comm.waiting import Patience
from ssmpi.core import settings
from ssmpi.core.errors import SettingsError
from ssmpi.core.settings import SECONDS, positive, require
from ssmpi.core.topology import Topology
from ssmpi.data import reader
from ssmpi.data.schema import DENSE_FEATURES, SPARSE_FEATURES
from ssmpi.embedding import table
from ssmpi.model.options import DenseOptions, ModelOptions, Schedule
from ssmpi.roles import evaluate


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
class Config:
    """All sections of a run file."""

    data: reader.Options
    run: Run = field(default_factory=Run)
    topology: Topology = field(default_factory=Topology)
    model: ModelOptions = field(default_factory=ModelOptions)
    embedding: table.Options = field(default_factory=table.Options)
    dense: DenseOptions = field(default_factory=DenseOptions)
    schedule: Schedule = field(default_factory=Schedule)
    sync: sync.Options = field(default_factory=sync.Options)
    evaluate: evaluate.Options = field(default_factory=evaluate.Options)
    checkpoint: policy.Options = field(default_factory=policy.Options)
    waiting: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        require(
            self.model.bottom[-1] == self.embedding.dim,
            f"model.bottom ends in {self.model.bottom[-1]}, but embedding.dim = {self.embedding.dim}: they are "
            "multiplied with each other and must be equal",
        )
        parameters = self.model.parameters(DENSE_FEATURES, SPARSE_FEATURES)
        require(
            self.sync.fragments <= parameters,
            f"sync.fragments = {self.sync.fragments:,} is more than the {parameters:,} parameters of the dense model",
        )
        try:
            sync.check_topology(self.sync, self.topology)
        except ValueError as error:
            raise SettingsError(str(error)) from None


def differences(before: Config, now: Config) -> list[str]:
    """What of the settings is another, in words, wherever the run folder is and however the way to the data is written."""
    was, are = (settings.flat(dataclasses.asdict(config)) for config in (before, now))
    for values in (was, are):
        values["run.folder"], values["data.folder"] = "", str(Path(values["data.folder"]).resolve())
    return [f"{name} was {was.get(name)!r}, now {are[name]!r}" for name in are if was.get(name) != are[name]]


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a run file with overrides; SettingsError says what is wrong with it."""
    return settings.load(Config, path, overrides)
