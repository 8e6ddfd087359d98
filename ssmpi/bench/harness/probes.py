"""Probes: what a measured job can record besides examples per second. Each probe has its own job."""

from __future__ import annotations

import bisect
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ssmpi.bench.harness import gil
from ssmpi.bench.harness.loop import TickingPace, TrainerView
from ssmpi.bench.harness.stages import StagedTrainer
from ssmpi.bench.harness.windows import Readings, Timing, clock
from ssmpi.embedding.trackers import NOTHING
from ssmpi.embedding.transport import RemoteTables
from ssmpi.sync.pace import Shadow

if TYPE_CHECKING:
    from ssmpi.trainer.trainer import Trainer


class Probe:
    """Records nothing more: the unmodified loop, from which all rates of examples come."""

    def begin(self, edges: Sequence[float]) -> None:
        """Called when the windows are known."""

    def read(self) -> Readings:
        """The probe's counters."""
        return {}

    def at_end(self, timing: Timing) -> gil.Sample:
        """The probe's findings after the windows, while training continues."""
        return {}


@dataclass(frozen=True)
class Probed:
    """What probes work with: the trainer, as its worker threads see it, the clock in their loop, and the values of
    ``sync.cpu_share`` to compare.
    """

    trainer: Trainer
    view: TrainerView
    pace: TickingPace
    shares: Sequence[float] = ()


class StageProbe(Probe):
    """Stopwatches around everything the loop calls."""

    def __init__(self, probed: Probed) -> None:
        assert isinstance(probed.view, StagedTrainer)
        self._stages = probed.view.stages

    def read(self) -> Readings:
        """Seconds by stage."""
        return {f"stage/{name}": seconds for name, seconds in self._stages.spent().items()}


class GilProbe(Probe):
    """The share of time with the GIL."""

    def at_end(self, timing: Timing) -> gil.Sample:
        """Sample this process."""
        return gil.sample(os.getpid(), timing.seconds)


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


class ShadowProbe(AlternatingProbe):
    """The shadow thread works or rests; if one trainer of a host runs the rounds for all, it is that trainer's. It
    works for an equal part of the windows at each of ``shares`` of a core; 0 is the default share of the topology.

    It stops resting when its trainer runs out of data, because the others wait for it at the end of a pass. Wall time
    counts only rounds entirely within windows with rounds: in others, this trainer may have waited for one that rests.
    """

    REST_SECONDS = 0.05  # long: the cost of resting is subtracted from the cost of rounds

    def __init__(self, probed: Probed) -> None:
        super().__init__()
        exchange, shadow = probed.trainer.synchronizers[0].exchange, probed.trainer.pace
        self._pace, self._exchange = probed.pace, exchange
        self._timed = {"rounds/timed": 0.0, "rounds/timed_seconds": 0.0}
        self._began, self._before = math.nan, (0.0, 0.0)  # of the last round: when, and the tally until then
        if isinstance(shadow, Shadow):
            self._shadow, shipped = shadow, shadow.cpu_share
            self._shares = [min(1.0, share * exchange.members) or shipped for share in probed.shares or (0.0,)]
            shadow.before_round = self._in_turn

    def read(self) -> Readings:
        """The rounds whose wall time counts, and their seconds."""
        return dict(self._timed)

    def _in_turn(self) -> None:
        """Count the last round, and wait for the turn of the next one."""
        rounds, seconds, *_ = self._exchange.tally
        took = seconds - self._before[1]
        if rounds > self._before[0] and turn(self._edges, self._began) == turn(self._edges, self._began + took):
            self._timed["rounds/timed"] += 1
            self._timed["rounds/timed_seconds"] += took
        self._before = rounds, seconds
        while (now := clock()) < (end := end_of_others_turn(self._edges, now)) and not self._pace.ending:
            time.sleep(min(end - now, self.REST_SECONDS))
        self._shadow.cpu_share = self._shares[share_of(self._edges, now, len(self._shares))]
        self._began = now


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
        from ssmpi.bench.harness import dense  # here, because servers import this module but not torch

        super().__init__()
        pace, steps = probed.pace, dense.steps_of(kind, probed.trainer.config)

        def gate(thread: int) -> None:
            while self.others_turn():
                steps[thread]()
                pace.count(thread)

        pace.gate = gate


class PriorityProbe(AlternatingProbe):
    """Embedding PSs save rows by priority, and trainers count accesses for that; or neither. A save in progress at the
    end of a turn is finished in the next one; PSs begin none while the first trainer says that they may not.
    """

    def __init__(self, probed: Probed) -> None:
        super().__init__()
        transport = probed.trainer.tables.transport
        assert isinstance(transport, RemoteTables)
        tracking = transport.tracking

        def gate(thread: int) -> None:
            transport.tracking = NOTHING if self.others_turn() else tracking

        probed.pace.gate, transport.may_save = gate, lambda: not self.others_turn()


def turn(edges: Sequence[float], now: float) -> int:
    """The number of turns that have begun by ``now``; odd ones, the second and third of each four windows, are the
    other variant's.
    """
    return bisect.bisect_right(edges, now) // 2


def share_of(edges: Sequence[float], now: float, shares: int) -> int:
    """The index of the share in use at ``now``: each has an equal part of the windows, in whole fours."""
    fours = max(1, (len(edges) - 1) // 4)
    four = min(max(0, bisect.bisect_right(edges, now) - 1) // 4, fours - 1)
    return four * shares // fours


def others_window(edges: Sequence[float], now: float) -> bool:
    """Whether it is the other variant's turn at ``now``."""
    return turn(edges, now) % 2 == 1 and now < edges[-1]


def end_of_others_turn(edges: Sequence[float], now: float) -> float:
    """The end of the other variant's turn, if it is in progress; else ``now``."""
    if not others_window(edges, now):
        return now
    return edges[min(2 * turn(edges, now) + 1, len(edges) - 1)]


PROBES: dict[str, Callable[[Probed], Probe]] = {
    "nothing": lambda probed: Probe(),
    "stages": StageProbe,
    "gil": lambda probed: GilProbe(),
    "shadow": ShadowProbe,
    "threads": OneThreadProbe,
    **{kind: partial(OtherStepProbe, kind) for kind in ("bare step", "gemm", "pytorch")},
    "priority": PriorityProbe,
}
