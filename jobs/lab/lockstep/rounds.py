"""Rounds in lockstep: the synchronizers, exchanges and center of real runs, over conversations within this process and
at given times.

``gap`` and ``staleness`` are in ticks; in a tick every worker thread does one iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from ssmpi.model.options import DenseOptions
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.mpi.in_process import AnsweringJob, InProcessChannel, InProcessConversation
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.mpi.waiting import WaitOptions
from ssmpi.runtime.protocols import DenseOptimizer, DenseStep
from ssmpi.runtime.topology import Role, Topology
from ssmpi.runtime.traffic import ENTRIES, SENT, Traffic, meter
from ssmpi.sync import (
    ALGORITHMS,
    SYNC_PS,
    LocalTrainer,
    ReplicaMemory,
    RoundContext,
    RoundOptions,
    Synchronizer,
    algorithm_of,
    make_center,
)
from ssmpi.sync.base import ANOTHER_TRAINER
from ssmpi.sync.center import CenterExchange
from ssmpi.trainer.sync_ps import optimizer

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation

T = TypeVar("T")
Merge = Callable[[np.ndarray, np.ndarray, np.ndarray], None]  # of live weights, their reference and their snapshot
WAITING = WaitOptions()


@dataclass(frozen=True)
class Pushing:
    """What pushes need in addition: the settings of the center's optimizer, the ends of the vector's layers, and the
    number of worker threads per trainer. Without ``feedback`` the entries that a codec does not send are discarded, as
    a control for error feedback.
    """

    dense: DenseOptions = field(default_factory=DenseOptions)
    layers: Sequence[int] = ()
    threads: int = 1
    feedback: bool = True


def check_algorithm(options: RoundOptions) -> None:
    """Raise SettingsError for an algorithm that lockstep cannot run: its trainers take part in rounds at given times,
    and partners that answer at any time, or steps that are rounds, do not.
    """
    if not _runs(algorithm_of(options)):
        known = [name for name, kind in ALGORITHMS.items() if _runs(kind)]
        raise SettingsError(
            f"lockstep knows sync.algorithm = {', '.join(known)} and those derived from them, got {options.algorithm!r}"
        )


def _runs(kind: type[Synchronizer]) -> bool:
    return kind.partner != ANOTHER_TRAINER and not kind.in_the_step


class LockstepRounds:
    """``replicas`` are the live vectors of all trainers, float32 (parameters,) each. A gap below 1 means several rounds
    per tick. Trainers that exchange with a center take turns within the gap; others meet, each on a thread of its own.
    """

    def __init__(
        self,
        options: RoundOptions,
        replicas: Sequence[np.ndarray],
        gap: float,
        staleness: int,
        pushing: Pushing | None = None,
    ) -> None:
        check_algorithm(options)
        self.count, self._gap, self._staleness, self._tick = 0, gap, staleness, 0
        self._late: list[tuple[int, Callable[[], None]]] = []
        self._pushing, self._traffic, self._job = pushing or Pushing(), Traffic(), AnsweringJob()
        self._kind = algorithm_of(options)
        self._central = self._kind.partner == SYNC_PS
        # Every merge is a message's: memory that others move knows no staleness.
        self._options = replace(options, pace="fixed_rate", every_iterations=1, every_seconds=0.0, shared_memory=False)
        topology = Topology(trainers=len(replicas), threads=self._pushing.threads, sync_ps=int(self._central))
        self._channels = {
            name: InProcessChannel(self._job, topology.directory(name)) for name in ("replicas", "center")
        }
        self._pool = ThreadPoolExecutor(len(replicas))
        if self._central:
            (rank,) = self._channels["center"].directory.ranks_of(Role.SYNC_PS)
            service = Service(self._conversation("center", rank, Traffic()))  # trainers count both ways
            step = optimizer(self._pushing.dense)
            self._center = center = make_center(self._options, step, service, ProcessMemory())
            self._job.answer = lambda: service.answer_pending(center.handle)
        self._trainers = self._of_each(lambda k: self._trainer(k, replicas[k]), range(len(replicas)))

    def after_tick(self, tick: int, training: Sequence[int]) -> None:
        """Called after tick ``tick`` with the trainers that took part in it."""
        self._tick = tick
        self._merge_until(tick)
        if not self._central:
            for _ in range(self._due(tick) if self._kind.partner else 0):
                self._of_each(lambda k: self._round(k, k in training), range(len(self._trainers)))
                self.count += 1
            return
        for trainer in training:
            for _ in range(self._due(tick, trainer / len(self._trainers))):
                self._round(trainer, True)
                self.count += 1

    def close(self) -> None:
        """Called when all trainers have finished a part of the run."""
        self._merge_until(None)
        self._tick, self._traffic.on = 0, self._central
        self._of_each(self._close, range(len(self._trainers)))
        self._traffic.on = False
        self._merge_until(None)
        for own in self._trainers:
            if isinstance(own.exchange, CenterExchange):
                own.exchange.fetch()  # as all do to evaluate
                self.count += 1

    def model(self) -> np.ndarray:
        """The vector to evaluate, float32 (parameters,)."""
        if self._central:
            return self._center.shard.copy()
        return self._of_each(lambda k: self._trainers[k].model(), range(len(self._trainers)))[0]

    def optimizer(self, trainer: int, thread: int, own: DenseOptimizer) -> DenseStep:
        """The optimizer of a worker thread: ``own``, unless the algorithm wraps it."""
        self._trainers[trainer].context.local.optimizer = own
        return self._trainers[trainer].optimizer(thread)

    @property
    def figures(self) -> dict[str, float]:
        """Rounds, payload bytes in both directions, and the share of the entries that a codec has sent."""
        counts = self._traffic.by_name()
        density = {"density": counts[SENT] / counts[ENTRIES]} if counts[ENTRIES] else {}
        sent = counts["bytes_center_push"] + counts["bytes_trainers"]
        return {"rounds": self.count, "push_bytes": sent, "pull_bytes": counts["bytes_center_pull"], **density}

    def _trainer(self, k: int, replica: np.ndarray) -> Synchronizer:
        local = LocalTrainer(
            iterations=np.zeros(self._pushing.threads, np.int64),
            replica=ReplicaMemory(layers=tuple(self._pushing.layers)),
        )
        others, center = (self._conversation(name, k, self._traffic) for name in ("replicas", "center"))
        exchange = self._kind.make_exchange(self._options, replica, RoundContext(others, center, WAITING, local))
        vars(exchange)["merge"] = partial(self._merge_later, exchange.merge)  # found before the method of that name
        own = self._kind(self._options, exchange)
        for thread in range(self._pushing.threads):
            own.optimizer(thread)
        return own

    def _conversation(self, name: str, rank: int, traffic: Traffic) -> Conversation:
        """The end of a rank; trainers come first in every conversation."""
        return cast("Conversation", InProcessConversation(self._channels[name], rank, meter(traffic, name)))

    def _of_each(self, work: Callable[[int], T], trainers: Iterable[int]) -> list[T]:
        """What ``work`` returns for each trainer: in turn, or at once where they wait for each other."""
        return list(map(work, trainers) if self._central else self._pool.map(work, trainers))

    def _round(self, trainer: int, active: bool) -> None:
        self._traffic.on = True
        self._trainers[trainer].round(active)
        self._traffic.on = not self._central  # others may be in theirs
        self._discard(trainer)

    def _close(self, trainer: int) -> None:
        self._trainers[trainer].close()
        self._discard(trainer)

    def _discard(self, trainer: int) -> None:
        """What a codec has not sent, without ``feedback``."""
        for gradients, _ in self._trainers[trainer].context.local.unsent.values():
            if not self._pushing.feedback:
                gradients[:] = 0.0

    def _due(self, tick: int, shift: float = 0.0) -> int:
        """The number of rounds that begin after this tick."""
        return int(tick / self._gap + shift) - int((tick - 1) / self._gap + shift)

    def _merge_later(self, merge: Merge, weights: np.ndarray, reference: np.ndarray, snapshot: np.ndarray) -> None:
        if self._staleness:
            late = partial(merge, weights, reference.copy(), snapshot.copy())
            self._late.append((self._tick + self._staleness, late))
        else:
            merge(weights, reference, snapshot)

    def _merge_until(self, tick: int | None) -> None:
        """Perform the merges that are due by this tick; None: all pending ones."""
        late, self._late = self._late, []
        for due, merge in late:
            if tick is None or due <= tick:
                merge()
            else:
                self._late.append((due, merge))
