"""A rank of a measured job: its usual role in training for a few seconds, while its counters are read.

``python -m ssmpi.bench.rank TASK.json``, under mpirun, as ``jobs`` starts it; or another program that calls
``run`` with a ``Measured`` of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmpi.bench import process_usage
from ssmpi.bench.jobs import ServerResult, Task, TrainerResult, of_trainer
from ssmpi.bench.loop import TickingPace, TrainerView
from ssmpi.bench.probes import PROBES, Probed
from ssmpi.bench.stages import ServedThrough, StagedServer, StagedTrainer
from ssmpi.bench.windows import Readings, Ticks, clock, watch
from ssmpi.config import Config, load
from ssmpi.runtime.files import log
from ssmpi.runtime.mpi import failure, signals
from ssmpi.runtime.topology import Role
from ssmpi.state.recovery.start import BEGINNING
from ssmpi.train import PARTS, help_lane, hogwild

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.world import Job, MakeConversation, World
    from ssmpi.trainer.trainer import Trainer


class Measured:
    """What stands between a rank and its work: stopwatches, for the probe ``stages``. Subclasses put in more."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.stages: dict[str, float] = {}  # a server's seconds by stage

    def conversations(self, role: Role) -> MakeConversation:
        """What makes a rank's conversations."""
        from ssmpi.runtime.mpi.messages import Conversation

        if role is Role.TRAINER or self.task.probe != "stages":
            return Conversation
        return partial(ServedThrough, partial(StagedServer, self.stages, role))

    def view(self, trainer: Trainer) -> TrainerView:
        """The trainer as its worker threads see it."""
        return StagedTrainer(trainer) if self.task.probe == "stages" else TrainerView(trainer)


def run(kind: type[Measured] = Measured) -> None:
    """Run one rank of the task that the first argument names, and exit."""
    try:
        task = Task.read(Path(sys.argv[1]))
        signals.listen()
        from ssmpi.runtime.mpi.world import joined

        with joined() as job:
            from ssmpi.state import run_folder

            run_file = Path(task.run_file)
            config = job.agree(lambda: run_folder.prepare(load(run_file, task.overrides), job.size, overwrite=True))
            play(kind(task), config, job)
            job.leave()
    except Exception as error:
        sys.exit(failure.report_fatal_error(error))


def play(measured: Measured, config: Config, job: Job) -> None:
    """Run the role that the topology assigns to this rank."""
    from ssmpi.runtime.mpi.world import World

    world = World(job, config.topology, measured.conversations(config.topology.role_of(job.rank)[0]))
    log.configure(world.who, verbose=False)
    names = [config.topology.name_of(rank) for rank in range(job.size)]
    pids = dict(zip(names, job.comm.allgather((job.host, os.getpid())), strict=True))
    out = config.run.path / f"{world.who.replace(' ', '-')}.json"
    if world.role is Role.TRAINER:
        servers = {
            name: pid for name, (host, pid) in pids.items() if host == job.host and not name.startswith(Role.TRAINER)
        }
        own = servers if world.index == 0 else {}
        found: TrainerResult | ServerResult = train_in_windows(measured, config, world, own)
    else:
        PARTS[world.role](config, world, BEGINNING)
        found = {"stages": measured.stages}
    out.write_text(json.dumps(found), encoding="utf-8")


def train_in_windows(measured: Measured, config: Config, world: World, servers: dict[str, int]) -> TrainerResult:
    """Train until the windows are over, then stop as on request."""
    from ssmpi.trainer.trainer import Trainer

    task, trainer = measured.task, Trainer(config, world, BEGINNING)
    view: Any = measured.view(trainer)
    ticks = Ticks(config.topology.threads)
    pace = view.pace = TickingPace(view.pace, ticks)
    probe = PROBES[task.probe](Probed(trainer, view, pace))
    world.trainers.gather(0)  # all are ready: the clock may start
    edges = task.timing.edges(world.trainers.share(clock()))
    probe.begin(edges)
    readings: list[Readings] = []

    def read() -> Readings:
        counted = {
            "rounds/all": float(sum(s.exchange.tally[0] for s in trainer.synchronizers)),
            "rounds/seconds": float(sum(s.exchange.tally[1] for s in trainer.synchronizers)),
            "host/busy": process_usage.host_busy(),
        }
        own = {f"rss/{world.who}": float(process_usage.private_memory())}
        return {**counted, **own, **process_usage.own_cpu(), **process_usage.of_servers(servers), **probe.read()}

    def measure() -> None:
        readings.extend(watch(edges, read))
        signal.raise_signal(signal.SIGUSR1)  # the ordinary way to stop a run

    meter = trainer.start("meter", measure)
    for _ in trainer.parts():
        pace.begin()
        trainer.train_part(lambda thread, _: hogwild(thread, view), help_lane)
    meter.join(
        config.waiting.time_limit_seconds
    )  # another trainer may have stopped the job a moment before this one is done
    batch = trainer.progress.examples / max(1, trainer.batches) or config.data.batch_size
    trainer.goodbye()
    found = of_trainer(edges, readings)
    found["eps"] = [rate * batch for rate in ticks.rates(edges)]
    found["interrupted"] = ticks.interrupted(edges)
    return found


if __name__ == "__main__":
    run()
