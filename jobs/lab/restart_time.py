"""Measures how long a job takes to resume training after one of its ranks was killed, phase by phase: real jobs under
``ssmpi launch``, SIGKILL to a random rank.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from statistics import median

from ssmpi.cluster import child_process
from ssmpi.runtime.errors import DataError, PeerError
from ssmpi.runtime.files import log
from ssmpi.runtime.files.log import ENDS
from ssmpi.runtime.files.run_files import METRICS
from ssmpi.runtime.host.mpi_environment import PYTHON
from ssmpi.state.recovery.run_record import RunRecord

TIMEOUT_SECONDS = 120.0  # until a job trains, at first or after a kill
POLL_SECONDS = 0.005
CALM = 0.5  # seconds of training between two kills
ENDLESS = ("data.passes=1000000", "run.log_seconds=0.02", "recovery.max_restarts=1000000")


@dataclass(frozen=True, kw_only=True)
class RestartTime:
    """Seconds of consecutive phases. ``detection``: until a rank notices that another one is gone; ``end``: until the
    launcher has ended; ``spawn``: until the first rank's process exists; ``join``: imports, MPI, comparing the
    surviving memory; ``maps``: memory, kernels, conversations, until all are ready; ``batch``: until the first report
    of new batches.
    """

    detection: float
    end: float
    spawn: float
    join: float
    maps: float
    batch: float

    @property
    def whole(self) -> float:
        """From the kill to training."""
        return sum(asdict(self).values())


def measure(run_file: Path, overrides: Sequence[str], run: Path, kills: int) -> list[RestartTime]:
    """Start the run, kill one of its ranks ``kills`` times, then stop it. PeerError, with the end of its output, if it
    does not resume training.
    """
    words = ("-m", "ssmpi", "launch", str(run_file), *overrides, *ENDLESS)
    with (run.parent / f"{run.name}.txt").open("w+") as said:
        job = child_process.start([*PYTHON, *words], stdout=said, stderr=said)

        def until(happened: Callable[[], object], what: str) -> None:
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while not happened():
                if job.poll() is not None or time.monotonic() > deadline:
                    raise PeerError(f"the job does not {what}:\n{Path(said.name).read_text()[-2000:]}")
                time.sleep(POLL_SECONDS)

        try:
            until(lambda: _trained(run), "train")
            return [_one(run, run_file, until) for _ in range(kills)]
        finally:
            job.send_signal(signal.SIGTERM)
            job.wait(TIMEOUT_SECONDS)


def _one(run: Path, run_file: Path, until: Callable[[Callable[[], object], str], None]) -> RestartTime:
    time.sleep(CALM)
    rank, before = random.choice(ranks_of(run_file)), len(RunRecord.read(run).resumed())
    killed = time.time()
    os.kill(rank, signal.SIGKILL)
    until(lambda: len(RunRecord.read(run).resumed()) > before, "start again")
    found, trained = RunRecord.read(run).resumed()[-1], _trained(run)
    until(lambda: _trained(run) > trained, "train again")
    batch = time.time()
    decided = datetime.fromisoformat(found["at"]).timestamp()
    seconds = found["seconds"]
    ended, spawned, ready = decided - seconds["ranks"], decided - seconds["process"], decided + seconds["restore"]
    noted = min((at for at in _ends(run) if killed <= at < ended), default=ended)
    moments = (killed, noted, ended, spawned, decided, ready, batch)
    names = (field.name for field in fields(RestartTime))
    return RestartTime(**{name: b - a for name, a, b in zip(names, moments, moments[1:], strict=False)})


def ranks_of(run_file: Path) -> list[int]:
    """Process ids of the ranks that train by this run file; DataError if there are none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if str(run_file).encode() in words and b"train" in words and b"mpirun" not in words[0]:
                found.append(int(folder.name))
    if not found:
        raise DataError(f"{run_file}: no rank trains by it")
    return found


def _trained(run: Path) -> int:
    """The number of training lines in ``metrics.jsonl`` so far."""
    path = run / METRICS
    return path.read_text(encoding="utf-8").count('"kind": "train"') if path.is_file() else 0


def _ends(run: Path) -> list[float]:
    """The times at which ranks logged why their job ends, in seconds since the epoch."""
    pattern = re.compile(rf"^(\S+ \S+) .* \| {ENDS}", re.MULTILINE)
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in (run / log.LOGS).glob("*.log")]
    found = [when for text in texts for when in pattern.findall(text)]
    return [datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").timestamp() for when in found]


def table(times: Sequence[RestartTime]) -> str:
    """Median and maximum of each phase and of the sum."""
    parts = {field.name: [getattr(each, field.name) for each in times] for field in fields(RestartTime)}
    parts["whole"] = [each.whole for each in times]
    shown = [f"{name} {median(found):.2f} ({max(found):.2f})" for name, found in parts.items()]
    return f"seconds from SIGKILL of a rank to the first batch, median (most) of {len(times)}: {', '.join(shown)}"
