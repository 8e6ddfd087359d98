"""What a rank of a measured job does: its ordinary part in training, for a few seconds, with counters read beside it.

``python -m ssmpi.bench.rank TASK.json``, under mpirun, as ``jobs`` starts it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmpi import log
from ssmpi.bench import lock, stages, usage
from ssmpi.bench.windows import Readings, Ticking, Ticks, Timing, clock, spent, watch
from ssmpi.comm import failure, signals
from ssmpi.config import Config
from ssmpi.topology import Role
from ssmpi.train import PARTS, hogwild

if TYPE_CHECKING:
    from ssmpi.comm.world import Job, World
    from ssmpi.roles.trainer import Trainer


@dataclass(frozen=True)
class Task:
    """What all ranks of a job are told. ``look`` is one of ``LOOKS``: what is looked at besides examples per second."""

    run_file: str
    overrides: tuple[str, ...]
    timing: Timing
    look: str = "nothing"

    def write(self, path: Path) -> None:
        """Leave it where ``read`` finds it."""
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Task:
        """The task in a file."""
        body = json.loads(path.read_text(encoding="utf-8"))
        return cls(body["run_file"], tuple(body["overrides"]), Timing(**body["timing"]), body["look"])


def main() -> None:
    """One rank's whole life."""
    task = Task.read(Path(sys.argv[1]))
    signals.listen()
    from ssmpi.comm.world import joined

    with joined() as job:
        from ssmpi import folder

        config = job.agree(lambda: folder.prepare(Path(task.run_file), task.overrides, job.size, overwrite=True))
        play(task, config, job)
        job.leave()


def play(task: Task, config: Config, job: Job) -> None:
    """The part that the topology gives to this rank."""
    from ssmpi.comm.world import World

    world = World(job, config.topology)
    log.configure(world.who, talkative=False)
    names = [config.topology.name_of(rank) for rank in range(job.size)]
    pids = dict(zip(names, job.comm.allgather(os.getpid()), strict=True))
    out = Path(config.run.folder) / f"{world.who.replace(' ', '-')}.json"
    if world.role is Role.TRAINER:
        servers = {name: pid for name, pid in pids.items() if not name.startswith(Role.TRAINER)}
        found = train_in_windows(task, config, world, servers if world.index == 0 else {})
    else:
        watching = stages.of_server(world) if task.look == "stages" else dict
        PARTS[world.role](config, world, Path(config.run.folder))
        found = {"stages": watching()}
    out.write_text(json.dumps(found), encoding="utf-8")


def train_in_windows(task: Task, config: Config, world: World, servers: dict[str, int]) -> dict[str, Any]:
    """A trainer that stops, as if it had been asked to, when its windows are over."""
    from ssmpi.roles.trainer import Trainer

    trainer = Trainer(config, world, Path(config.run.folder))
    ticks = Ticks(config.topology.threads)
    trainer.pace = Ticking(trainer.pace, ticks)
    body, look = LOOKS[task.look](trainer)
    world.trainers.gather(0)  # all are ready: the clock may start
    edges = task.timing.edges(world.trainers.share(clock()))
    found: dict[str, Any] = {}

    def read() -> Readings:
        counted = {"rounds": float(sum(s.rounds for s in trainer.synchronizers)), "host/busy": usage.host_busy()}
        own = {f"rss/{world.who}": float(usage.resident(os.getpid()))}
        return {**counted, **own, **usage.own_cpu(), **usage.of_servers(servers), **look.read()}

    def measure() -> None:
        found["readings"] = watch(edges, read)
        found["seen"] = look.at_end(task.timing)
        signal.raise_signal(signal.SIGUSR1)  # the ordinary way to stop a run

    trainer.start("meter", measure)
    for _ in trainer.parts():
        trainer.train_part(body)
    batch = trainer.progress.examples / max(1, int(trainer.progress.iterations.sum())) or config.data.batch_size
    trainer.goodbye()
    return outcome(found, edges, [rate * batch for rate in ticks.rates(edges)])


def outcome(found: dict[str, Any], edges: list[float], eps: list[float]) -> dict[str, Any]:
    """What a trainer tells: examples per second by window, and what its counters grew by."""
    readings: list[Readings] = found["readings"]
    memory = {name: value for name, value in readings[0].items() if name.startswith("rss/")}
    return {
        "eps": eps,
        "seconds": edges[-1] - edges[0],
        "cpu": spent(readings, "cpu"),
        "host": spent(readings, "host"),
        "rss": {name.removeprefix("rss/"): [value, readings[-1][name]] for name, value in memory.items()},
        "rounds": readings[-1]["rounds"] - readings[0]["rounds"],
        "stages": spent(readings, "stage"),
        "rows": spent(readings, "rows"),
        "seen": found["seen"],
    }


class Look:
    """Looks at nothing besides: the untouched loop, of which all rates of examples come."""

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


class Exchange(Look):
    """Pull and push without a model between them: as much work as embedding PSs can be given."""

    def __init__(self, trainer: Trainer) -> None:
        self._rows = [0] * trainer.config.topology.threads

    def hogwild(self, thread: int, trainer: Trainer) -> None:
        """As ``train.hogwild``, with constant gradients."""
        import numpy as np

        lookups = trainer.tables.lookups(thread)
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
    "exchange": exchange,
}


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit(failure.last_words(error))
