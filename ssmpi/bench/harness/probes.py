"""What else a measured job can read besides its examples per second; each probe has a job to itself."""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.bench.harness import dense, gil, stages
from ssmpi.bench.harness.rows import Source
from ssmpi.bench.harness.windows import Readings, TickingPace, Timing, clock
from ssmpi.train import hogwild

if TYPE_CHECKING:
    from ssmpi.roles.trainer import Trainer


class Probe:
    """Reads nothing more: the untouched loop, from which all rates of examples come."""

    def begin(self, edges: Sequence[float]) -> None:
        """The windows are known."""

    def read(self) -> Readings:
        """Counters of its own."""
        return {}

    def at_end(self, timing: Timing) -> dict[str, Any]:
        """What it finds after the windows, while training continues."""
        return {}


class StageProbe(Probe):
    """Stopwatches around everything that the loop calls."""

    def __init__(self, trainer: Trainer) -> None:
        self._stages = stages.of_trainer(trainer)

    def read(self) -> Readings:
        """Seconds by stage."""
        return {f"stage/{name}": seconds for name, seconds in self._stages.spent().items()}


class GilProbe(Probe):
    """Who holds the GIL."""

    def at_end(self, timing: Timing) -> dict[str, Any]:
        """Sample this process."""
        return gil.sample(os.getpid(), timing.seconds)


class AlternatingProbe(Probe):
    """Two ways to work in the windows of one job, in turns: one, other, other, one. Jobs of one kind differ by more than the
    effect sought, and so does a shared host from one minute to the next; the windows of one job do not.
    """

    LATE_SECONDS = 0.005

    def __init__(self) -> None:
        self._edges: Sequence[float] = ()

    def begin(self, edges: Sequence[float]) -> None:
        """From now on by the clock, so that all threads and trainers change at the same time."""
        self._edges = edges

    def others_turn(self) -> bool:
        """Whether it is the other way's turn."""
        return others_window(self._edges, clock())

    def rest(self, until: Callable[[], bool] = lambda: False) -> None:
        """Do nothing in the other way's windows, but no longer than ``until`` something."""
        while self.others_turn() and not until():
            time.sleep(self.LATE_SECONDS)


class ShadowProbe(AlternatingProbe):
    """The shadow thread works or rests."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        for synchronizer in trainer.synchronizers:
            synchronizer.round = self._in_turn(synchronizer.round)  # type: ignore[method-assign]

    def _in_turn(self, act: Callable[[], None]) -> Callable[[], None]:
        def gated() -> None:
            self.rest()
            act()

        return gated


class OneThreadProbe(AlternatingProbe):
    """All worker threads work, or the first alone, which at the end of a pass would wait for those that rest with rows in hand."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        pace = trainer.pace
        assert isinstance(pace, TickingPace)
        after_step = pace.after_step

        def gated(thread: int) -> None:
            after_step(thread)
            if thread and self.others_turn() and not pace.ending:
                self.rest(lambda: pace.ending)
                pace.rested(thread)

        pace.after_step = gated  # type: ignore[method-assign]


class BareStepProbe(AlternatingProbe):
    """The whole loop, or the dense step alone on rows that are there: the ceiling of this program."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        after_step = trainer.pace.after_step
        steps = dense.bare_steps(trainer.config, Source(trainer.config))

        def gated(thread: int) -> None:
            after_step(thread)
            while self.others_turn():
                steps[thread]()
                after_step(thread)

        trainer.pace.after_step = gated  # type: ignore[method-assign]


def others_window(edges: Sequence[float], now: float) -> bool:
    """Whether it is the other way's turn at this time: of each four windows in the second and third."""
    window = bisect.bisect_right(edges, now) - 1
    return 0 <= window < len(edges) - 1 and window % 4 in (1, 2)


class ExchangeProbe(Probe):
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
            self._rows[thread] += 2 * rows.found
            trainer.pace.after_step(thread)
        trainer.pace.thread_done(thread)

    def read(self) -> Readings:
        """Distinct rows pulled and pushed."""
        return {"rows/exchanged": float(sum(self._rows))}


Body = Callable[[int, "Trainer"], None]


def exchange(trainer: Trainer) -> tuple[Body, Probe]:
    """The loop without a model."""
    probe = ExchangeProbe(trainer)
    return probe.hogwild, probe


PROBES: dict[str, Callable[[Any], tuple[Body, Probe]]] = {
    "nothing": lambda trainer: (hogwild, Probe()),
    "stages": lambda trainer: (hogwild, StageProbe(trainer)),
    "gil": lambda trainer: (hogwild, GilProbe()),
    "shadow": lambda trainer: (hogwild, ShadowProbe(trainer)),
    "threads": lambda trainer: (hogwild, OneThreadProbe(trainer)),
    "bare": lambda trainer: (hogwild, BareStepProbe(trainer)),
    "exchange": exchange,
}
