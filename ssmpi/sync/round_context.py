"""The parts of its trainer that a synchronization algorithm may use, and the ranks that it communicates with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.runtime.mpi.push_counts import SentPushes
from ssmpi.runtime.mpi.rank_memory import ProcessMemory, RankMemory
from ssmpi.runtime.mpi.shared_memory import Memory, PrivateMemory
from ssmpi.runtime.mpi.waiting import WaitOptions
from ssmpi.runtime.protocols import DenseModel, DenseOptimizer, RowTables
from ssmpi.runtime.topology import Role

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation


class NoDenseModel:
    """A model and an optimizer of no parameters, for trainers that only exchange their replicas."""

    def __init__(self) -> None:
        self.arrays = np.empty(0, np.float32), np.empty(0, np.float32)

    def step(self, model: DenseModel, factor: float) -> None:
        """Nothing to step."""

    def state(self) -> dict[str, np.ndarray]:
        """Nothing."""
        return {}


@dataclass
class RowAccess:
    """How this trainer reaches embedding rows of ``width`` floats on ``servers`` servers."""

    tables: RowTables | None = None
    servers: int = 1
    width: int = 1


@dataclass
class ReplicaMemory:
    """The ``memory`` of the live replica on ``host``, and where its ``layers`` end."""

    host: str = ""
    memory: Memory = field(default_factory=PrivateMemory)
    layers: tuple[int, ...] = ()


@dataclass
class LocalTrainer:
    """What an algorithm may use of its trainer; most need only ``iterations``, for their metrics.

    ``iterations`` int64 (threads,) done so far, and those ``helped`` with, int64 (threads,), by threads that step this
    trainer's parameters for other members' lanes; ``factor`` of the learning rates now; ``optimizer`` steps a
    ``thread_model``. An algorithm's arrays lie in ``memory``, so that they survive a kill. ``unsent`` holds, by worker
    thread, the gradients that a codec has not sent and the codec's state. ``sent`` counts pushes of gradients to the
    sync PSs.
    """

    iterations: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    factor: Callable[[], float] = lambda: 1.0
    optimizer: DenseOptimizer = field(default_factory=NoDenseModel)
    thread_model: Callable[[], DenseModel] = lambda: NoDenseModel()
    rows: RowAccess = field(default_factory=RowAccess)
    replica: ReplicaMemory = field(default_factory=ReplicaMemory)
    memory: RankMemory = field(default_factory=ProcessMemory)
    unsent: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    sent: SentPushes = field(default_factory=SentPushes)
    helped: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def steps(self) -> int:
        """Steps of the replica so far, of all its lanes."""
        return int(self.iterations.sum() + self.helped.sum())


@dataclass
class RoundContext:
    """The ranks that a synchronizer communicates with: in ``replicas`` the same member of every replica, and the sync
    PSs in ``center``.
    """

    replicas: Conversation
    center: Conversation
    waiting: WaitOptions
    local: LocalTrainer = field(default_factory=LocalTrainer)

    @property
    def sync_ps(self) -> tuple[int, ...]:
        """Ranks of the sync PSs in ``center``, by index."""
        return self.center.directory.ranks_of(Role.SYNC_PS)
