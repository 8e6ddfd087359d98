"""The emulated parts of a group's members: home and helpers wait where they would compute, by the products that the
places give each of them, and exchange real messages in the order and of the sizes of a real step.

All threads of a trainer take turns on its cores, so a helper's work delays that of its trainer's own lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from jobs.lab.cluster.emulation import Computing, EmulatedTrainer, PseudoGradients, WaitingModel
from ssmpi.model.executor import PIECE
from ssmpi.model.lane import CLOSE, HelperModel, HomeModel, MemberModel
from ssmpi.runtime.mpi.mailbox import DONE, is_full, post, take
from ssmpi.runtime.protocols import DenseModel, DenseStep
from ssmpi.tools.group_walk import Compute, Post, Take, walk
from ssmpi.trainer.worker import HelperSteps, HelpingTrainer, WorkerModel, WorkerPace

if TYPE_CHECKING:
    from ssmpi.bench.harness.loop import AnyTrainer

T = TypeVar("T")


class EmulatedMember(EmulatedTrainer):
    """A member of a group, as its worker threads see it."""

    def __init__(self, trainer: AnyTrainer, seconds: float, index: int, threads: int) -> None:
        super().__init__(trainer, seconds, index, threads)
        self._uncounted = self.pace

    def model_of(self, thread: int) -> WorkerModel:
        """As ``WorkerTrainer``."""
        model = self._trainer.model_of(thread)
        assert isinstance(model, HomeModel)
        return waiting_home(model, Walk(model, self._computing_of(thread), self._seconds), self._index)

    def optimizer_of(self, thread: int) -> DenseStep:
        """As ``WorkerTrainer``."""
        return OfInner(self._trainer.optimizer_of(thread))

    def helper_of(self, thread: int) -> HelperSteps:
        """As ``HelpingTrainer``."""
        model = self._trainer.helper_of(thread)
        assert isinstance(model, HelperModel)
        return WaitingHelper(model, Walk(model, self._computing_of(thread), self._seconds), self._index)

    @property
    def helping(self) -> HelpingTrainer:
        """As ``TrainerView``."""
        return EmulatedHelp(self, self._trainer, self._uncounted)


class EmulatedHelp:
    """The same, as its helper threads see it."""

    def __init__(self, member: EmulatedMember, trainer: AnyTrainer, pace: WorkerPace) -> None:
        self.pace, self.helper_of = pace, member.helper_of
        self.optimizer_of, self.count_help = trainer.optimizer_of, trainer.count_help


class OfInner:
    """Steps the model that an emulated one stands for."""

    def __init__(self, inner: DenseStep) -> None:
        self._inner = inner

    def step(self, model: DenseModel, factor: float) -> None:
        """One step."""
        assert isinstance(model, WaitingModel)
        self._inner.step(model.inner, factor)


class Walk:
    """What one thread does for a step of its lane, emulated: forward and backward through its part of the network,
    which takes its share of a ``step``'s seconds.
    """

    def __init__(self, model: MemberModel, computing: Computing, step: float) -> None:
        self._part, self._channel, self._computing, self._seconds = model.part, model.channel, computing, step
        longest = max((edge.message for edge in self._part.edges), default=0)
        self._values = np.zeros(PIECE * longest // 4, np.float32)

    def step(self, examples: int) -> None:
        """Forward and backward."""
        for action in walk(self._part, examples):
            if isinstance(action, Compute):
                self._computing.compute(action.share * self._seconds)
            elif isinstance(action, Post):
                self._post(action)
            else:
                self._take(action)

    def _post(self, message: Post) -> None:
        """Send so many bytes, in whole float32 numbers."""
        numbers, address = -(-message.size // 4), self._channel.addresses[message.box]
        self._check(message.box, post(address, self._values, 1, numbers, numbers, False, self._channel.limit))

    def _take(self, message: Take) -> None:
        """Wait for what ``_post`` sends."""
        numbers, address = -(-message.size // 4), self._channel.addresses[message.box]
        taken = partial(take, address, self._values, 1, numbers, numbers, False, False, self._channel.limit)
        self._check(message.box, self.awaited([message.box], taken))

    def awaited(self, numbers: Sequence[int], body: Callable[[], T]) -> T:
        """``body()``, which takes messages from mailboxes: if they are not there yet, the thread waits for them."""
        there = all(is_full(self._channel.addresses[number]) for number in numbers)
        found = body()
        if not there:
            self._computing.resume()
        return found

    def _check(self, number: int, code: int) -> None:
        if code != DONE:
            raise self._channel.error(number, code)


def waiting_home(model: HomeModel, walk: Walk, trainer: int) -> WaitingModel:
    """The model of a lane's home that waits instead of computing."""
    part = model.part
    weights = [part.begin(helper) + 2 for helper in part.helpers if part.lent.get(helper)]

    def step(examples: int) -> None:
        walk.awaited(weights, partial(model.begin, examples))
        walk.step(examples)

    return WaitingModel(model, model.gradients, step, trainer)


class WaitingHelper:
    """The model of another member, which waits instead of computing."""

    def __init__(self, model: HelperModel, walk: Walk, trainer: int) -> None:
        self.arrays, self._model, self._walk = model.arrays, model, walk
        self._gradients = PseudoGradients(self.arrays[1].size, trainer)

    def steps(self) -> Iterator[float]:
        """As ``HelperModel``."""
        begin = self._model.part.begin(self._model.part.member)
        self._model.send_weights()
        while (examples := self._walk.awaited([begin], self._model.await_batch)) != CLOSE:
            self._walk.step(examples)
            self.arrays[1][:] = self._gradients.next()
            yield self._walk.awaited([begin + 1], self._model.take_gradients)
            self._model.send_weights()
