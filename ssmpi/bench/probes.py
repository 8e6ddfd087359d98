"""Probes: what a measured job can record besides examples per second. Each probe has its own job."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ssmpi.bench.loop import TickingPace, TrainerView
from ssmpi.bench.stages import StagedTrainer
from ssmpi.bench.windows import Readings, clock

if TYPE_CHECKING:
    from ssmpi.trainer.trainer import Trainer


class Probe:
    """Records nothing more: the unmodified loop, from which all rates of examples come."""

    def begin(self, edges: Sequence[float]) -> None:
        """Called when the windows are known."""

    def read(self) -> Readings:
        """The probe's counters."""
        return {}


@dataclass(frozen=True)
class Probed:
    """What probes work with: the trainer, as its worker threads see it, and the clock in their loop."""

    trainer: Trainer
    view: TrainerView
    pace: TickingPace


class StageProbe(Probe):
    """Stopwatches around everything the loop calls."""

    def __init__(self, probed: Probed) -> None:
        assert isinstance(probed.view, StagedTrainer)
        self._stages = probed.view.stages

    def read(self) -> Readings:
        """Seconds by stage."""
        return {f"stage/{name}": seconds for name, seconds in self._stages.spent().items()}


class AlternatingProbe(Probe):
    """Alternates between two variants in the windows of one job: one, other, other, one. Separate jobs differ by more
    than the effect to measure, and so does a shared host from minute to minute; the windows of one job do not.
    """

    LATE_SECONDS = 0.005

    def __init__(self) -> None:
        self._edges: Sequence[float] = ()

    def begin(self, edges: Sequence[float]) -> None:
        """Alternate by the clock from now on, so that all threads and trainers switch at the same time."""
        self._edges = edges

    def others_turn(self) -> bool:
        """Whether it is the other variant's turn."""
        return others_window(self._edges, clock())

    def rest(self, until: Callable[[], bool]) -> None:
        """Sleep during the other variant's windows, at most until ``until()``."""
        while self.others_turn() and not until():
            time.sleep(self.LATE_SECONDS)


class OneThreadProbe(AlternatingProbe):
    """All worker threads work, or only the first. Resting threads resume at the end of a pass, since the first would
    wait for their rows.
    """

    def __init__(self, probed: Probed) -> None:
        super().__init__()
        pace = probed.pace

        def gate(thread: int) -> None:
            if thread and self.others_turn() and not pace.ending:
                self.rest(lambda: pace.ending)
                pace.rested(thread)

        pace.gate = gate


class OtherStepProbe(AlternatingProbe):
    """The whole loop, or the reference of ``dense`` named ``kind``, on the same threads."""

    def __init__(self, kind: str, probed: Probed) -> None:
        from ssmpi.bench import dense  # here, because servers import this module but not torch

        super().__init__()
        pace, steps = probed.pace, dense.steps_of(kind, probed.trainer.config)

        def gate(thread: int) -> None:
            while self.others_turn():
                steps[thread]()
                pace.count(thread)

        pace.gate = gate


def turn(edges: Sequence[float], now: float) -> int:
    """The number of turns that have begun by ``now``; odd ones, the second and third of each four windows, are the
    other variant's.
    """
    return bisect.bisect_right(edges, now) // 2


def others_window(edges: Sequence[float], now: float) -> bool:
    """Whether it is the other variant's turn at ``now``."""
    return turn(edges, now) % 2 == 1 and now < edges[-1]


PROBES: dict[str, Callable[[Probed], Probe]] = {
    "nothing": lambda probed: Probe(),
    "stages": StageProbe,
    "threads": OneThreadProbe,
    **{kind: partial(OtherStepProbe, kind) for kind in ("bare step", "gemm", "pytorch")},
}
