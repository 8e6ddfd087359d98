"""The cost of keeping a job's state over a kill: speed, alternating within one job, and memory of whole jobs."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ssmpi.bench.harness import process_usage
from ssmpi.bench.harness.memory_swap import MemorySwap, mappings_below
from ssmpi.bench.harness.probes import AlternatingProbe, Body, Probe
from ssmpi.bench.harness.windows import Readings, TickingPace
from ssmpi.checkpoint.start import BEGINNING, Start
from ssmpi.comm.memory_file import MemoryFile, Origin
from ssmpi.core.topology import Role
from ssmpi.host import memory_folder
from ssmpi.train import hogwild

if TYPE_CHECKING:
    from ssmpi.comm.world import Job
    from ssmpi.config import Config
    from ssmpi.roles.trainer import Trainer

IN_TURNS, KEPT, FORGOTTEN = "recovery", "kept", "forgotten"  # names of probes


class MemoryProbe(Probe):
    """The memory of the whole job."""

    def read(self) -> Readings:
        """The bytes of all its ranks."""
        return {"rss/whole job": float(process_usage.of_siblings())}


class RecoveryProbe(AlternatingProbe):
    """Rows, replica and optimizer state are in files of a memory file system, with notes written beside them; or in
    ordinary memory, as without recovery. For one trainer without rounds, so no other process uses its replica. All
    threads pause for the switch. Sums and histograms, which the main thread reads too, stay in files.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        pace, memory = trainer.pace, trainer.synchronizers[0].context.local.memory
        assert isinstance(pace, TickingPace)
        assert isinstance(memory, MemoryFile)
        assert trainer.world.trainers.size == 1
        self._pace, self._threads = pace, trainer.config.topology.threads
        found, state = mappings_below(memory.path.parent), trainer.optimizer.state().values()
        own = [each for each in found if any(each.holds(values) for values in state)]
        shared = [each for each in found if each.holds(trainer.replica.vector) or Role.EMBEDDING_PS in each.path]
        self._memories, self._other = MemorySwap([each for each in shared if each not in own], own), False
        self._here, self._all_here = 0, threading.Condition()
        note, after_step = memory.note, pace.after_step

        def gated(thread: int) -> None:
            after_step(thread)
            if self.others_turn() != self._other:
                self._change_over()

        pace.after_step = gated  # type: ignore[method-assign]
        memory.note = lambda *what: None if self.others_turn() else note(*what)  # type: ignore[method-assign]

    def _change_over(self) -> None:
        """Switch when the last thread arrives; threads without data are not waited for."""
        with self._all_here:
            before = self._other
            self._here += 1
            if self._here == self._threads:
                self._memories.exchange()
                self._other = not before
                self._all_here.notify_all()
            while self._other == before and not self._pace.ending:
                self._all_here.wait(self.LATE_SECONDS)
            self._here -= 1


def start(probe: str, config: Config, job: Job) -> Start:
    """The start of a measured rank. These probes, and runs that save rows by priority, get memory that outlives the
    process, as under ``ssmpi launch``.
    """
    launch = f"bench-{job.comm.bcast(secrets.token_hex(6))}"
    if probe not in (IN_TURNS, KEPT) and config.checkpoint.priority == "none":
        return BEGINNING
    (role, index), who = config.topology.role_of(job.rank), config.topology.name_of(job.rank)
    path = memory_folder.of_launch(config.recovery.memory_folder, launch) / f"{role}-{index}"
    return Start(memory=MemoryFile(path, Origin(launch, who, 1)))


PROBES: dict[str, Callable[[Trainer, Sequence[float]], tuple[Body, Probe]]] = {
    IN_TURNS: lambda trainer, _: (hogwild, RecoveryProbe(trainer)),
    KEPT: lambda trainer, _: (hogwild, MemoryProbe()),
    FORGOTTEN: lambda trainer, _: (hogwild, MemoryProbe()),
}
