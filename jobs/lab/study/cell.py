"""Runs one cell of a study as a separate job, through ``ssmpi launch``, unless it is finished.

While the job runs its lock is held, by the study and by ``ssmpi launch``, which inherits it. If a study is killed and
restarted, it waits for the previous job, which stops with its study, to end, instead of starting a second job in the
same folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import subprocess
from pathlib import Path
from types import FrameType
from typing import IO

from jobs.lab.study.grid import Cell, Study
from ssmpi.cluster import child_process
from ssmpi.config import differences, load
from ssmpi.runtime import settings
from ssmpi.runtime.errors import STOPPED, SettingsError, UserError
from ssmpi.runtime.files.result_marker import is_finished
from ssmpi.runtime.files.run_files import MODEL, RUN_FILE
from ssmpi.runtime.host.mpi_environment import PYTHON
from ssmpi.runtime.mpi import signals
from ssmpi.state import run_lock

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
GRACE_SECONDS = 20.0  # between a request to end and the next stronger one
LAST_LINES = 3  # of a failed job's log, in the message


class CellError(RuntimeError):
    """A cell did not finish; the message has the cause and the path of its log."""


@dataclasses.dataclass(frozen=True)
class CellFiles:
    """The paths of a cell's files."""

    run: Path
    run_file: Path
    log: Path
    lock: Path


def files_of(study: Study, cell: Cell) -> CellFiles:
    """The paths of a cell's run folder, and of its run file, log and lock beside the run folders."""
    run = Path(cell.config.run.folder)
    jobs = study.folder / "jobs"
    return CellFiles(run, jobs / f"{run.name}.toml", jobs / f"{run.name}.log", jobs / f"{run.name}.lock")


def finished(cell: Cell) -> bool:
    """Whether the run's marker says that it is complete. SettingsError if the run had other settings than the cell has
    now.
    """
    run = Path(cell.config.run.folder)
    complete = is_finished(run)
    if complete:
        _check_same(cell, run)
    return complete


def run(study: Study, cell: Cell) -> int:
    """Run the cell to its end; returns 0, or STOPPED if it was asked to stop. CellError if it fails.

    Does nothing if the cell is finished; if another process runs it, waits for its end.
    """
    where = files_of(study, cell)
    where.lock.parent.mkdir(parents=True, exist_ok=True)
    limit = 60 * study.options.limit_minutes
    with _held(where, limit) as lock:
        if not finished(cell):
            where.run_file.write_text(settings.dump(cell.config), encoding="utf-8")
            code = _launched(where, limit, lock, study.options.site)
            if code == STOPPED:
                return code
            if not finished(cell):
                raise CellError(f"exit code {code}; {_last_words(where.log)}")
    tidy(study, cell)
    return 0


def tidy(study: Study, cell: Cell) -> None:
    """Delete the model of a finished cell, unless models are kept."""
    if not study.options.keep_models:
        shutil.rmtree(Path(cell.config.run.folder) / MODEL, ignore_errors=True)


def _launched(where: CellFiles, limit: float, lock: IO[str], site: str) -> int:
    """Run ``ssmpi launch`` and forward every signal that this process receives; returns its exit code, or STOPPED after
    a signal.
    """
    line = [*PYTHON, "-m", "ssmpi", "launch", str(where.run_file), "--overwrite"]
    line += ["--site", site] if site else []
    with where.log.open("w", encoding="utf-8") as log:
        job = child_process.start(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(lock.fileno(),))
    told: list[int] = []

    def forward(signum: int, frame: FrameType | None) -> None:
        told.append(signum)
        job.send_signal(signum)

    before = {signum: signals.handle(signum, forward) for signum in FORWARDED}
    try:
        code = job.wait(limit)
        return STOPPED if told else code
    except subprocess.TimeoutExpired:
        _end(job)
        raise CellError(f"not done after {limit / 60:g} minutes, ended; {where.log}") from None
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _end(job: subprocess.Popen[bytes]) -> None:
    """End a job: the signals of ``ssmpi launch`` to stop and to end, then SIGKILL."""
    for end in (job.terminate, job.terminate, job.kill):
        end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(GRACE_SECONDS)
            return


def _held(where: CellFiles, limit: float) -> IO[str]:
    """Acquire the cell's lock; CellError if another process holds it for longer than a cell may take."""
    try:
        return run_lock.acquire(where.lock, lambda _: limit)
    except run_lock.LockHeldError:
        raise CellError(
            f"another process has been running it for {limit / 60:g} minutes; end that one "
            f"(fuser {where.lock} names it)"
        ) from None


def _check_same(cell: Cell, run: Path) -> None:
    try:
        before = load(run / RUN_FILE)
    except UserError as error:
        raise SettingsError(
            f"{run}: finished, but its settings are not readable ({error}); remove that folder"
        ) from None
    if other := differences(before, cell.config):
        raise SettingsError(
            f"{run}: finished with other settings than this cell has ({'; '.join(other)}): remove that folder "
            "to run it anew, or choose another study.folder"
        )


def _last_words(log: Path) -> str:
    """Why a job ended: the first line with an error in its log, else the last lines; and the path of the log."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    error = next((line for line in lines if line.startswith("error: ")), None)
    return f"{error or ' / '.join(lines[-LAST_LINES:])}; {log}"
