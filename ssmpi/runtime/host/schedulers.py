"""Batch systems: what a job of each is told of itself, and the commands that submit one or put it back into the queue.
Site files name them by their sections.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ssmpi.runtime.errors import UserError

UNLIMITED = 2.0**32 - 1  # seconds; what Flux says of a job without a limit
ANSWER_SECONDS = 60.0  # a batch system that does not answer must not hold up a job


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """A batch system, called ``name``, with its ``section`` of a site file. ``job`` is the variable that only its jobs
    have, ``batch_file`` the name of the file that a run submits, with options after ``prefix``. ``submit``,
    ``requeue``, ``cancel`` and ``jobs``, which lists the user's jobs, are commands; ``{job}`` stands for the number of
    this job, ``{file}`` for the batch file.

    ``hosts`` names the hosts of this job; UserError if it cannot. ``seconds_left`` says for how many seconds the job
    may still run, None if it has no limit. ``warns`` if a signal comes before that.
    """

    section: str
    name: str
    job: str
    batch_file: str
    prefix: str
    submit: str
    requeue: str
    cancel: str
    jobs: str
    hosts: Callable[[], list[str]]
    seconds_left: Callable[[], float | None]
    warns: bool = False

    def job_number(self) -> str:
        """The number of the job that this process belongs to; empty if it belongs to none."""
        return os.environ.get(self.job, "")

    def job_name(self) -> str:
        """What messages call this job."""
        return f"job {self.job_number()}" if self.cancel else "this job"

    def submission(self, folder: Path) -> str:
        """The command that submits the batch file in a run folder, as a shell takes it."""
        return self._command(self.submit, folder)

    def requeueing(self, folder: Path) -> str:
        """The command that makes this job, whose run is in a folder, go on later."""
        return self._command(self.requeue, folder)

    def cancellation(self) -> str:
        """The command that ends this job."""
        return self._command(self.cancel, Path())

    def _command(self, template: str, folder: Path) -> str:
        return template.format(job=self.job_number(), file=shlex.quote(str(folder / self.batch_file)))


def current() -> Scheduler | None:
    """The batch system whose job this process belongs to."""
    return next((scheduler for scheduler in SCHEDULERS if scheduler.job_number()), None)


def answer(words: Sequence[str], name: str) -> str:
    """What a command of the batch system ``name`` prints; UserError if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS)
    except OSError as error:
        raise UserError(f"{words[0]}: cannot be started ({error.strerror}): put {name}'s commands on PATH") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"'{shlex.join(words)}' did not answer within {ANSWER_SECONDS:g} s: is {name} up?") from None
    if done.returncode:
        said = " / ".join(done.stderr.splitlines()) or "it does not say why"
        raise UserError(f"'{shlex.join(words)}' failed (exit code {done.returncode}): {said}")
    return done.stdout


def _slurm_hosts() -> list[str]:
    return answer(["scontrol", "show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")], "SLURM").split()


def _slurm_seconds_left() -> float | None:
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    return float(end) - time.time() if end.isdecimal() else None


def _node_file(variable: str) -> list[str]:
    """The hosts in the file that a variable names, which has one line for each of their slots."""
    try:
        return Path(os.environ[variable]).read_text(encoding="utf-8").split()
    except KeyError:
        raise UserError(f"{variable} is not set: launch in the job's own shell, or export it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the file that {variable} names cannot be read: {error}") from None


def _pbs_seconds_left() -> float | None:
    said = answer(["qstat", "-f", os.environ["PBS_JOBID"]], "PBS")
    limit = re.search(r"Resource_List\.walltime = (\d+):(\d+):(\d+)", said)
    began = re.search(r"^\s*stime = (.+)$", said, re.MULTILINE)
    if not (limit and began):
        return None
    hours, minutes, seconds = map(int, limit.groups())
    start = time.mktime(time.strptime(began[1].strip(), "%a %b %d %H:%M:%S %Y"))
    return start + 3600 * hours + 60 * minutes + seconds - time.time()


def _lsf_seconds_left() -> float | None:
    said = answer(["bjobs", "-noheader", "-o", "time_left", os.environ["LSB_JOBID"]], "LSF")
    left = re.match(r"\s*(\d+):(\d+) L", said)  # L: of a limit; E: of an estimate
    return 3600.0 * int(left[1]) + 60 * int(left[2]) if left else None


def _flux_seconds_left() -> float | None:
    left = float(answer(["flux", "job", "timeleft"], "Flux"))
    return left if left < UNLIMITED else None


SCHEDULERS = (
    Scheduler(
        section="slurm",
        name="SLURM",
        job="SLURM_JOB_ID",
        batch_file="job.sbatch",
        prefix="#SBATCH",
        submit="sbatch {file}",
        requeue="scontrol requeue {job}",
        cancel="scancel {job}",
        jobs="squeue",
        hosts=_slurm_hosts,
        seconds_left=_slurm_seconds_left,
        warns=True,
    ),
    Scheduler(
        section="pbs",
        name="PBS",
        job="PBS_JOBID",
        batch_file="job.pbs",
        prefix="#PBS",
        submit="qsub {file}",
        requeue="qsub {file}",  # qrerun is for operators
        cancel="qdel {job}",
        jobs="qstat",
        hosts=partial(_node_file, "PBS_NODEFILE"),
        seconds_left=_pbs_seconds_left,
    ),
    Scheduler(
        section="lsf",
        name="LSF",
        job="LSB_JOBID",
        batch_file="job.lsf",
        prefix="#BSUB",
        submit="bsub < {file}",
        requeue="brequeue {job}",
        cancel="bkill {job}",
        jobs="bjobs",
        hosts=partial(_node_file, "LSB_DJOB_HOSTFILE"),
        seconds_left=_lsf_seconds_left,
    ),
    Scheduler(
        section="flux",
        name="Flux",
        job="FLUX_URI",  # a batch script is not told the number of its job
        batch_file="job.flux",
        prefix="# flux:",
        submit="flux batch {file}",
        requeue="flux --parent batch {file}",
        cancel="",
        jobs="flux jobs",
        hosts=lambda: answer(["flux", "hostlist", "--expand", "local"], "Flux").split(),
        seconds_left=_flux_seconds_left,
    ),
)
