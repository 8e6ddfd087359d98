"""A trainer as ``train.hogwild`` sees it in a measured job: the clock is read once a step, and a probe may keep a
thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ssmpi.bench.windows import Ticks, clock

if TYPE_CHECKING:
    from ssmpi.sync import Pace
    from ssmpi.trainer.trainer import Trainer


class TrainerView:
    """Hands everything on; subclasses replace some of it. ``pace`` and ``progress`` may be replaced before the trainer
    trains.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.progress: Any = trainer.progress
        self.pace: Any = trainer.pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


class TickingPace:
    """A pace that ticks: the only addition of a measurement to the loop of ``train.hogwild``, below a microsecond per
    step. After each step of a thread it calls ``gate``, which may keep the thread.
    """

    def __init__(self, pace: Pace, ticks: Ticks) -> None:
        self._inner, self._ticks = pace, ticks
        self.gate: Callable[[int], None] = lambda thread: None
        self.ending = False  # some thread has no more data in this pass and waits for the others

    def begin(self) -> None:
        """Call it before a part of the run starts."""
        self.ending = False

    def after_step(self, thread: int) -> None:
        """A worker thread has finished an iteration."""
        self.count(thread)
        self.gate(thread)

    def count(self, thread: int) -> None:
        """As ``after_step``, without the gate."""
        self._inner.after_step(thread)
        self._ticks.tick(thread)

    def thread_done(self, thread: int) -> None:
        """A worker thread has no more data in this part."""
        self.ending = True
        self._ticks.ends.append(clock())
        self._inner.thread_done(thread)

    def rested(self, thread: int) -> None:
        """A worker thread has rested."""
        self._ticks.tick(thread, 0)
