"""Measures where the time of a step goes: stopwatches around everything that ``train.hogwild`` and the servers' loop
call.

The loops themselves are unchanged, so the breakdown cannot diverge from the real code. A stopwatch costs about half a
microsecond per call; rates of examples never come from a run with stopwatches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from ssmpi.bench.loop import TrainerView
from ssmpi.data.batch import Batch
from ssmpi.embedding import wire
from ssmpi.embedding.client import Ids, Lookups
from ssmpi.embedding.lookup import Lookup
from ssmpi.runtime.mpi.inbox import Inbox
from ssmpi.runtime.mpi.messages import Conversation
from ssmpi.runtime.mpi.service import THREADS
from ssmpi.runtime.protocols import DenseModel, DenseStep, MPIRequest
from ssmpi.runtime.topology import Role
from ssmpi.runtime.traffic import Link

if TYPE_CHECKING:
    from ssmpi.model.replica import ThreadModel
    from ssmpi.trainer.progress import Progress
    from ssmpi.trainer.trainer import Trainer

T = TypeVar("T")

now = time.perf_counter


class Stages:
    """Seconds by stage, counted per thread and summed."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._all: list[dict[str, float]] = []

    def add(self, stage: str, seconds: float) -> None:
        """Charge a stage on the calling thread."""
        try:
            spent = self._mine.spent
        except AttributeError:
            spent = self._mine.spent = {}
            self._all.append(spent)
        spent[stage] = spent.get(stage, 0.0) + seconds

    def spent(self) -> dict[str, float]:
        """Seconds by stage over all threads so far."""
        total: dict[str, float] = {}
        for spent in self._all:
            for stage, seconds in list(spent.items()):
                total[stage] = total.get(stage, 0.0) + seconds
        return total

    def call(self, stage: str, inner: Callable[..., T], *arguments: object) -> T:
        """Charge one call to a stage, also one that fails; returns its result."""
        began = now()
        try:
            return inner(*arguments)
        finally:
            self.add(stage, now() - began)

    def each(self, items: Iterable[T], stage: str) -> Iterator[T]:
        """Yield the same items; the time to produce them is charged to a stage."""
        iterator = iter(items)
        while True:
            began = now()
            item = next(iterator, None)
            self.add(stage, now() - began)
            if item is None:
                return
            yield item


class StagedTrainer(TrainerView):
    """A trainer with stopwatches around all that a worker thread calls."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self.stages = Stages()
        self.progress = StagedProgress(trainer.progress, self.stages)

    def model_of(self, thread: int) -> StagedModel:
        """As ``Trainer``."""
        return StagedModel(self._trainer.model_of(thread), self.stages)

    def lookups(self, thread: int) -> Lookups:
        """As ``Trainer``."""
        return self._trainer.lookups(thread, partial(StagedLookups, self.stages))

    def optimizer_of(self, thread: int) -> DenseStep:
        """As ``Trainer``."""
        return StagedStep(self._trainer.optimizer_of(thread), self.stages)

    def stream(self, thread: int) -> Iterator[Batch]:
        """As ``Trainer``."""
        return self.stages.each(self._trainer.stream(thread), "read")


class StagedProgress:
    """Charges what is recorded."""

    def __init__(self, progress: Progress, stages: Stages) -> None:
        self._inner, self._stages, self.rate_factor = progress, stages, progress.rate_factor

    def record(self, thread: int, logits: np.ndarray, labels: np.ndarray) -> None:
        """As ``Progress``."""
        self._stages.call("record", self._inner.record, thread, logits, labels)


class StagedModel:
    """Charges the network."""

    def __init__(self, model: ThreadModel, stages: Stages) -> None:
        self._inner, self._stages, self.arrays = model, stages, model.arrays

    def forward_backward(
        self, dense: np.ndarray, rows: np.ndarray, labels: np.ndarray, first_example: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """As ``ThreadModel``."""
        return self._stages.call("forward/backward", self._inner.forward_backward, dense, rows, labels, first_example)


class StagedStep:
    """Charges the dense optimizer."""

    def __init__(self, step: DenseStep, stages: Stages) -> None:
        self._inner, self._stages = step, stages

    def step(self, model: DenseModel, factor: float) -> None:
        """As ``DenseStep``."""
        self._stages.call("dense update", self._inner.step, model, factor)


class StagedLookups(Lookups):
    """Charges pulls and pushes."""

    def __init__(self, stages: Stages, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stages = stages

    def ask(self, ids: Ids) -> Lookup:
        """As ``Lookups``."""
        return self._stages.call("ask for rows", super().ask, ids)

    def arrive(self, lookup: Lookup) -> Lookup:
        """As ``Lookups``."""
        return self._stages.call("wait for rows", super().arrive, lookup)

    def push(self, lookup: Lookup, gradients: np.ndarray, factor: float = 1.0) -> None:
        """As ``Lookups``."""
        self._stages.call("push", super().push, lookup, gradients, factor)


class ServerEnd(Protocol):
    """What a server uses of its conversation."""

    def next_message(self, inbox: Inbox) -> tuple[int, int, np.ndarray] | None:
        """Source, tag and payload of the next message, or None."""

    def isend(self, array: np.ndarray, dest: int, tag: int) -> MPIRequest:
        """Start sending a reply."""


KINDS = {wire.PULL: "gather and reply", wire.PUSH: "update"}


class StagedServer:
    """A stopwatch around a server's only source of messages, which adds to ``spent`` from the first message on. Taking
    a message is ``receive``; from there to the next call is the work for the message; the rest is idle.
    """

    def __init__(self, spent: dict[str, float], role: Role, inner: ServerEnd) -> None:
        self._spent, self._role, self._inner, self.isend = spent, role, inner, inner.isend
        self._doing, self._since = "", now()

    def next_message(self, inbox: Inbox) -> tuple[int, int, np.ndarray] | None:
        """As ``ServerEnd``."""
        began = now()
        if self._doing:
            self._add(self._doing, began - self._since)
        found = self._inner.next_message(inbox)
        self._since = now()
        if found is not None:
            self._add("receive", self._since - began)
            kind = found[1] // THREADS
            self._doing = KINDS.get(kind, "other") if self._role is Role.EMBEDDING_PS else "exchange"
        elif self._doing:  # time before the first message is not idle time
            self._add("idle", self._since - began)
            self._doing = "idle"
        return found

    def _add(self, stage: str, seconds: float) -> None:
        self._spent[stage] = self._spent.get(stage, 0.0) + seconds


class ServedThrough(Conversation):
    """A server's end, made as a ``Conversation`` is; ``through`` stands between it and the messages."""

    def __init__(self, through: Callable[[ServerEnd], ServerEnd], *made: Any) -> None:
        super().__init__(*made)
        self._through = through(Conversation(*made))

    def next_message(self, inbox: Inbox) -> tuple[int, int, np.ndarray] | None:
        """As ``Conversation``."""
        return self._through.next_message(inbox)

    def isend(self, array: np.ndarray, dest: int, tag: int, link: Link | None = None) -> MPIRequest:
        """As ``Conversation``; servers count nothing."""
        return self._through.isend(array, dest, tag)
