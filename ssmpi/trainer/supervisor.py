"""What a trainer's main thread does while its other threads work: it serves the control conversation, and looks after
checkpoints that are being written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ssmpi.runtime.mpi.waiting import SUPERVISOR, Backoff
from ssmpi.state.checkpoint.manager import CheckpointManager
from ssmpi.trainer.control import Control
from ssmpi.trainer.lanes import Lanes, StartThread
from ssmpi.trainer.metrics.trainer_report import TrainerReport

T = TypeVar("T")


@dataclass(frozen=True)
class Supervisor:
    """``start(name, body, *arguments)`` starts a guarded thread. ``report(finished)`` are the counters that the first
    trainer collects.
    """

    control: Control
    checkpoints: CheckpointManager
    lanes: Lanes
    start: StartThread
    report: Callable[[bool], TrainerReport]

    def run(self, hogwild: Callable[[int, T], None], help_lane: Callable[[int, T], None], trainer: T) -> None:
        """Run the ``trainer``'s worker threads, and the helpers of other members' lanes, until all have ended."""
        self.lanes.begin(self.start)
        threads = [self.start(f"helper {k}", help_lane, k, trainer) for k in self.lanes.helpers]
        threads += [self.start(f"worker {k}", self._work, hogwild, k, trainer) for k in self.lanes.workers]
        self.until(lambda: not any(thread.is_alive() for thread in threads), finished=False)
        self.lanes.end()

    def _work(self, hogwild: Callable[[int, T], None], thread: int, trainer: T) -> None:
        """A worker thread: when its batches end, its helpers end too."""
        hogwild(thread, trainer)
        self.lanes.close(thread)

    def until(self, done: Callable[[], bool], *, finished: bool) -> None:
        """Serve until ``done()`` and, at the end of a part, until no other trainer needs this one."""
        pause = Backoff(SUPERVISOR)
        while True:
            ended = done()
            self.checkpoints.poll()
            free = self.control.tick(self.report, finished=finished and ended)
            if ended and (free or not finished):
                return
            pause.nap()
