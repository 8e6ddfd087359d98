"""Runs measured MPI jobs one after the other and combines the results of their ranks: of a visit in one process, of a
rank, of a job's trainers together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ssmpi.bench.windows import Readings, Timing, spent
from ssmpi.cluster import child_process, launch
from ssmpi.cluster.child_process import session_folder
from ssmpi.runtime.errors import PeerError
from ssmpi.runtime.files.run_files import VERSIONS
from ssmpi.runtime.host.mpi_environment import PYTHON
from ssmpi.runtime.mpi import signals

TIME_LIMIT_SECONDS = 300.0
QUIET = (
    "data.passes=1000000",
    "evaluate.per_pass=1",
    "evaluate.split=none",
    "evaluate.keep=last",  # a run file for few rows has "best"
    "run.tensorboard=false",
    "run.log_seconds=3600.0",
)


@dataclass(frozen=True)
class Task:
    """The task of all ranks of a job. ``probe`` is one of ``probes.PROBES``; ``more`` is for ranks of another program,
    as JSON.
    """

    run_file: str
    overrides: tuple[str, ...]
    timing: Timing
    probe: str = "nothing"
    more: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the task as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Task:
        """Read a task that ``write`` wrote."""
        body = json.loads(path.read_text(encoding="utf-8"))
        overrides, timing = tuple(body["overrides"]), Timing(**body["timing"])
        return cls(body["run_file"], overrides, timing, body["probe"], body["more"])


class Visit(TypedDict):
    """Examples per second by window; CPU seconds by part and of the host; memory by process at start and end; rounds of
    a trainer; all over ``seconds``.
    """

    eps: list[float]
    seconds: float
    cpu: Readings
    host: Readings
    rss: dict[str, list[float]]
    rounds: float


class TrainerResult(Visit):
    """``interrupted``: whether a pass ended, by window; seconds by stage; ``round_seconds`` that all rounds took."""

    interrupted: list[bool]
    stages: Readings
    round_seconds: float


class ServerResult(TypedDict):
    """Seconds by stage, if stages were timed."""

    stages: Readings


class JobResult(TrainerResult):
    """All trainers together: sums of rates and seconds; ``rounds`` are per trainer. ``servers`` by file name."""

    servers: NotRequired[dict[str, ServerResult]]


def of_trainer(edges: Sequence[float], readings: list[Readings]) -> TrainerResult:
    """The growth of a trainer's counters between the edges of its windows; the rates of examples are added later."""
    memory = {name: value for name, value in readings[0].items() if name.startswith("rss/")}
    return {
        "eps": [],
        "interrupted": [],
        "seconds": edges[-1] - edges[0],
        "cpu": spent(readings, "cpu"),
        "host": spent(readings, "host"),
        "rss": {name.removeprefix("rss/"): [value, readings[-1][name]] for name, value in memory.items()},
        "rounds": spent(readings, "rounds")["all"],
        "round_seconds": spent(readings, "rounds")["seconds"],
        "stages": spent(readings, "stage"),
    }


def together(trainers: Sequence[TrainerResult]) -> JobResult:
    """Combine the results of a job's trainers: rates and seconds are summed."""
    first = trainers[0]
    return {
        "eps": [sum(rates) for rates in zip(*(found["eps"] for found in trainers), strict=True)],
        "interrupted": [any(flags) for flags in zip(*(found["interrupted"] for found in trainers), strict=True)],
        "seconds": first["seconds"],
        "cpu": added(found["cpu"] for found in trainers),
        "host": first["host"],
        "rss": {name: values for found in trainers for name, values in found["rss"].items()},
        "rounds": sum(found["rounds"] for found in trainers) / len(trainers),
        "round_seconds": sum(found["round_seconds"] for found in trainers),
        "stages": added(found["stages"] for found in trainers),
    }


def added(counters: Iterable[Mapping[str, float]]) -> Readings:
    """Sums by name."""
    total: Readings = {}
    for found in counters:
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + value
    return total


@dataclass(frozen=True)
class Jobs:
    """Jobs that share a run file and differ in their overrides; their run folders are in ``folder``. ``rank``, the
    arguments of Python that run a rank, applies to all of them, and so does ``more``.
    """

    run_file: Path
    folder: Path
    rank: tuple[str, ...] = ("-m", "ssmpi.bench.rank")
    more: Mapping[str, Any] = field(default_factory=dict)

    def run(self, ranks: int, overrides: Sequence[str], timing: Timing, probe: str = "nothing") -> JobResult:
        """Run one job to its end; returns the combined results of its trainers. PeerError with its output if it
        fails.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        run_folder, task_file = self.folder / "run", self.folder / "task.json"
        settings = (*QUIET, *overrides, f"run.folder={run_folder}")
        Task(str(self.run_file), settings, timing, probe, self.more).write(task_file)
        finish(
            rank_line(ranks, *self.rank, str(task_file)),
            self.folder / "said.txt",
            TIME_LIMIT_SECONDS + timing.total,
            launch.environment(),
        )
        found = together([json.loads(path.read_text("utf-8")) for path in sorted(run_folder.glob("trainer-*.json"))])
        found["servers"] = {path.stem: json.loads(path.read_text("utf-8")) for path in run_folder.glob("*_ps-*.json")}
        return found

    def mpi(self) -> dict[str, str]:
        """The MPI library of the last job; querying it here would initialize MPI in this process."""
        versions = self.folder / "run" / VERSIONS
        found = json.loads(versions.read_text(encoding="utf-8")) if versions.is_file() else {}
        return {name: value for name, value in found.items() if name.startswith("mpi_")}


def rank_line(ranks: int, *arguments: str) -> list[str]:
    """The command that runs this Python with ``arguments`` on ``ranks`` ranks of this host."""
    return [launch.mpirun_path(), "-n", str(ranks), *PYTHON, *arguments]


def finish(line: Sequence[str], said: Path, seconds: float, variables: Mapping[str, str]) -> None:
    """Run a command to its end, with its output in a file; if it fails or is interrupted, all its processes are
    ended.
    """
    with said.open("w", encoding="utf-8") as out, session_folder() as session, ended_by_sigterm():
        environ = {**os.environ, **variables, **session.variables}
        job = child_process.start(
            line, environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=(session.lock,)
        )
        try:
            code: int | None = job.wait(seconds)  # below 0: of that signal
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGTERM)
                job.wait(30)
    text = said.read_text(encoding="utf-8", errors="replace")
    if code != 0:
        how = f"was not done after {seconds:.0f} s" if code is None else f"ended with {code}"
        raise PeerError(f"a measured job {how}: {' '.join(line)}\n{text.strip()[-4000:]}")


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, by an exception, so jobs and files of the block are cleaned up."""
    before = signals.handle(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
