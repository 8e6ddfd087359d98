"""What is looked at in a measured job besides its examples per second, each look in a job of its own."""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.bench import lock, stages
from ssmpi.bench.windows import Readings, Timing, clock
from ssmpi.train import hogwild

if TYPE_CHECKING:
    from ssmpi.roles.trainer import Trainer


class Look:
    """Looks at nothing besides: the untouched loop, of which all rates of examples come."""

    def begin(self, edges: Sequence[float]) -> None:
        """The windows are known."""

    def read(self) -> Readings:
        """Counters of its own."""
        return {}

    def at_end(self, timing: Timing) -> dict[str, Any]:
        """What it looks at after the windows, while training goes on."""
        return {}


class LookAtStages(Look):
    """Stopwatches around everything that the loop calls."""

    def __init__(self, trainer: Trainer) -> None:
        self._stages = stages.of_trainer(trainer)

    def read(self) -> Readings:
        """Seconds by stage."""
        return {f"stage/{name}": seconds for name, seconds in self._stages.spent().items()}


class LookAtLock(Look):
    """Who holds the interpreter lock."""

    def at_end(self, timing: Timing) -> dict[str, Any]:
        """Sample this process."""
        return lock.sample(os.getpid(), timing.seconds)


class LookInTurns(Look):
    """Lets the shadow thread rest in every other pair of windows: on, off, off, on. Jobs of one kind differ by more than a
    shadow thread costs; the windows of one job do not.
    """

    LATE_SECONDS = 0.005

    def __init__(self, trainer: Trainer) -> None:
        self._edges: Sequence[float] = ()
        for synchronizer in trainer.synchronizers:
            synchronizer.round = self._in_turn(synchronizer.round)  # type: ignore[method-assign]

    def begin(self, edges: Sequence[float]) -> None:
        """From now on it rests when it should; by the clock, so that all trainers' do at the same time."""
        self._edges = edges

    def _in_turn(self, act: Callable[[], None]) -> Callable[[], None]:
        def gated() -> None:
            while resting(self._edges, clock()):
                time.sleep(self.LATE_SECONDS)
            act()

        return gated


def resting(edges: Sequence[float], now: float) -> bool:
    """Whether the shadow thread rests at this time: of each four windows in the second and third."""
    window = bisect.bisect_right(edges, now) - 1
    return 0 <= window < len(edges) - 1 and window % 4 in (1, 2)


class Exchange(Look):
    """Pull and push without a model between them: as much work as embedding PSs can be given."""

    def __init__(self, trainer: Trainer) -> None:
        self._rows = [0] * trainer.config.topology.threads

    def hogwild(self, thread: int, trainer: Trainer) -> None:
        """As ``train.hogwild``, with constant gradients."""
        lookups = trainer.lookups(thread)
        for batch, rows in lookups.prefetched(trainer.stream(thread)):
            gradients = np.full(rows.values.shape, 1e-6, np.float32)
            lookups.push(rows, gradients)
            trainer.progress.record(thread, np.zeros(len(batch), np.float32), batch.labels)
            self._rows[thread] += 2 * int(rows.starts[-1])
            trainer.pace.after_step(thread)
        trainer.pace.thread_done(thread)

    def read(self) -> Readings:
        """Distinct rows pulled and pushed."""
        return {"rows/exchanged": float(sum(self._rows))}


Body = Callable[[int, "Trainer"], None]


def exchange(trainer: Trainer) -> tuple[Body, Look]:
    """The loop without a model."""
    look = Exchange(trainer)
    return look.hogwild, look


LOOKS: dict[str, Callable[[Any], tuple[Body, Look]]] = {
    "nothing": lambda trainer: (hogwild, Look()),
    "stages": lambda trainer: (hogwild, LookAtStages(trainer)),
    "lock": lambda trainer: (hogwild, LookAtLock()),
    "turns": lambda trainer: (hogwild, LookInTurns(trainer)),
    "exchange": exchange,
}
