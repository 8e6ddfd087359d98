"""``python -m jobs.lab scale``: the time to start and to end a job of many ranks; nothing else may depend on
their number.

Real training jobs on a few rows, oversubscribed on this host. The times come from the ranks' own logs.

Decided: a killed rank costs 3.8 s until the first batch, in a job of 8 ranks on two cores. Last run at eed9d4ca.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from jobs.lab import restart_time
from jobs.lab.options import ScaleOptions
from ssmpi.bench import data
from ssmpi.cluster.launch import launch
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files import atomic_file, log
from ssmpi.runtime.topology import Topology
from ssmpi.state.request import RunRequest

TINY = ("data.batch_size=64", "model.bottom=[32,16]", "model.top=[32,1]", "sync.algorithm=easgd")
QUIET = ("evaluate.split=none", "evaluate.final=none", "run.tensorboard=false", "checkpoint.every_minutes=0")
ROWS = 10_000
RESTARTED = 5  # ranks of the job that is killed


@dataclass(frozen=True)
class JobCost:
    """Seconds that a job of ``ranks`` ranks took: to join, until training began, for training, and to end."""

    ranks: int
    join: float
    prepare: float
    work: float
    end: float


def measure(options: ScaleOptions) -> list[JobCost]:
    """Run one job of each size and print their times; write ``scale.json`` to ``folder`` at the end. Then
    kill a rank of a job of ``RESTARTED`` ranks ``kills`` times, and print how long it takes to resume training.
    """
    jobs, folder, kills = [topology(ranks) for ranks in options.ranks], options.folder, options.kills
    folder.mkdir(parents=True, exist_ok=True)
    shards = data.synthetic(folder / "data", ROWS)
    costs = [job(roles, shards, folder / f"scale-{roles.size}") for roles in jobs]
    atomic_file.write(folder / "scale.json", json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")
    print(table(costs))
    if kills:
        times = restarts(shards, folder / f"restarts-{RESTARTED}", kills)
        atomic_file.write(folder / "restarts.json", json.dumps([asdict(each) for each in times], indent=1) + "\n")
        print(restart_time.table(times))
    return costs


def topology(ranks: int) -> Topology:
    """Half of the ranks train, an eighth are sync PSs, the others embedding PSs."""
    if ranks < 4:
        raise DataError(f"--ranks must be at least 4 to have all roles, got {ranks}")
    trainers, sync_ps = ranks // 2, max(1, ranks // 8)
    return Topology(trainers, 1, ranks - trainers - sync_ps, sync_ps)


def fresh(roles: Topology, shards: Path, run: Path) -> tuple[Path, tuple[str, ...]]:
    """The run file and settings of a new run, whose folder does not exist yet."""
    shutil.rmtree(run, ignore_errors=True)
    counts = (f"topology.{name}={getattr(roles, name)}" for name in ("trainers", "threads", "embedding_ps", "sync_ps"))
    run_file = run.with_suffix(".toml").absolute()
    run_file.write_text("", encoding="utf-8")
    return run_file, (f"data.folder={shards}", f"run.folder={run}", *counts, *TINY, *QUIET)


def restarts(shards: Path, run: Path, kills: int) -> list[restart_time.RestartTime]:
    """Repeatedly kill a rank of one job."""
    run_file, overrides = fresh(topology(RESTARTED), shards, run)
    return restart_time.measure(run_file, overrides, run, kills)


def job(roles: Topology, shards: Path, run: Path) -> JobCost:
    """Train once; DataError if that fails."""
    run_file, overrides = fresh(roles, shards, run)
    began = time.time()
    code = launch(RunRequest(run_file, overrides), None, dry_run=False)
    ended = time.time()
    if code:
        raise DataError(f"the job of {roles.size} ranks ended with {code}; see {run / log.LOGS}")
    joined = max(moment(path, "") for path in (run / log.LOGS).glob("*.log"))
    first = run / log.LOGS / "trainer-0.log"
    training, done = moment(first, "training starts"), moment(first, "complete:")
    return JobCost(roles.size, joined - began, training - joined, done - training, ended - done)


def moment(path: Path, words: str) -> float:
    """The time of the first log line that begins with ``words``, in seconds since the epoch."""
    for line in path.read_text(encoding="utf-8").splitlines():
        stamp, _, said = line.partition(" | ")
        if said.startswith(words):
            return datetime.strptime(stamp[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()
    raise DataError(f"{path}: no line that begins with '{words}'")


def table(costs: Sequence[JobCost]) -> str:
    """One line per job."""
    lines = ["ranks   all joined   training begins   rows trained   job ended   (seconds for each step)"]
    lines += [f"{c.ranks:5} {c.join:12.1f} {c.prepare:17.1f} {c.work:14.1f} {c.end:11.1f}" for c in costs]
    return "\n".join(lines)
