"""Decides how a launch ended and whether its batch job should be requeued. The run's result marker decides, not the
launcher's exit code alone: that is 0 after a lost host.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

from ssmpi.runtime.errors import LOST, STOPPED, DataError
from ssmpi.runtime.files import log, result_marker
from ssmpi.runtime.files.run_files import RESULT_NAME
from ssmpi.runtime.host.mpi_environment import START_LIMIT
from ssmpi.runtime.host.schedulers import Scheduler
from ssmpi.runtime.mpi.failure import say
from ssmpi.state.recovery import run_record

REFUSED = 2  # exit code of errors that the user can fix, also of ranks that did not start the run
OWN_EXIT_CODES = (1, REFUSED, 130)  # exit codes of ssmpi for errors that another launch would repeat
UNREACHABLE = (
    "repair it or remove it from launcher.hosts, or, where nodes take no ssh, name what to use instead"
    " (PRTE_MCA_plm_ssh_agent, such as pbs_tmrsh or blaunch); then launch again"
)
SRUN_KILLED = 1  # also srun's exit code after a rank was killed for running out of memory


class LaunchAttempt:
    """One launch of a run, in a batch job or by hand. ``requeue`` is the batch system that requeues the job if another
    launch may help. With ``resumed`` it succeeds if the run turns out to be finished already; with ``begun`` an earlier
    start of the same launch has begun the run.
    """

    def __init__(self, folder: Path, *, requeue: Scheduler | None, resumed: bool = False, begun: bool = False) -> None:
        self._folder, self._requeue, self._resumed, self._begun = folder, requeue, resumed, begun
        self._marker = folder / RESULT_NAME
        self._before, self._logs, self._attempts = self._written(), log.lengths(folder), attempts(folder)

    def conclude(self, code: int, *, cancelled: bool, silent: Callable[[], list[str]] = list) -> int:
        """Report how the launch ended, requeue its job if that may help, and return the exit code. ``code`` is the
        launcher's. ``cancelled``: the batch system is ending the job and decides itself whether to requeue it.
        ``silent`` finds hosts that do not answer; it is called if no rank has reported a lost one.
        """
        status = self._status(code)
        if status == result_marker.COMPLETE:
            return 0
        if status == result_marker.STOPPED:
            return self._requeue_if_useful("stopped and saved", STOPPED, cancelled)
        if code == STOPPED:  # and no marker: the ranks have reported why
            return self._requeue_if_useful(
                "stopped, without a record of that: the next job resumes from the ranks' memory if that is there, else"
                " from the newest checkpoint",
                STOPPED,
                cancelled,
            )
        if not self.lost(code):
            return code
        told = log.end_recorded(self._folder, self._logs)
        if code != LOST and not told:
            lost = silent()
            if lost and not self.begun:
                say(f"error: no answer from {', '.join(lost)}, and no rank has started: {UNREACHABLE}")
                return self._requeue_if_useful("no rank has started", LOST, cancelled) if self._requeue else REFUSED
            how = f"finish (see {self._folder})" if self._folder.is_dir() else "begin: launch it again"
            say(f"error: the launcher ended with {code}, but the run did not {how}")
            if lost:
                say(f"error: no answer from {', '.join(lost)}: {UNREACHABLE}")
        return self._requeue_if_useful("a rank or a host was lost", LOST, cancelled)

    def lost(self, code: int) -> bool:
        """Whether a rank or a host was lost, so that another start may succeed; ``code`` is the launcher's."""
        if self._status(code) in (result_marker.COMPLETE, result_marker.STOPPED) or code == STOPPED:
            return False
        told = log.end_recorded(self._folder, self._logs)
        # once a rank has logged anything, it also logs why it fails
        return code not in OWN_EXIT_CODES or not (told or not (self.begun and code == SRUN_KILLED))

    @property
    def begun(self) -> bool:
        """Whether a rank has logged anything."""
        return log.lengths(self._folder) != self._logs

    def saved(self, code: int) -> bool:
        """Whether the run is saved as far as it came: then its memory is of no use."""
        return bool(self._status(code))

    def _requeue_if_useful(self, why: str, code: int, cancelled: bool) -> int:
        scheduler = self._requeue
        if cancelled or not (scheduler and scheduler.job_number()):
            return code
        job = scheduler.job_name()
        if (many := self._jobs_not_begun()) >= run_record.MOST:
            say(
                f"error: {job} is not requeued: {many} jobs in a row ended before all ranks of {self._folder} had"
                " started, as the messages above say. If they were only slow, raise the limit in the batch file"
                f" ('export {START_LIMIT}=1200', in seconds), and submit it again"
            )
        else:
            say(f"{why}: requeueing {job}")
            line = scheduler.requeueing(self._folder)
            done = subprocess.run(f"exec {line}", shell=True).returncode
            if done not in (0, -signal.SIGTERM):  # requeueing ends this job, and the command with it
                say(f"error: '{line}' ended with {done}: submit the job again to resume the run")
        return code

    def _jobs_not_begun(self) -> int:
        """How many jobs in a row, this one included, have not begun the run; notes in the run that this one has not.
        The first rank notes the others.
        """
        found = attempts(self._folder)
        if self._begun or found != self._attempts:
            return 0
        if not self._folder.is_dir():  # then no job has begun
            return 1 + int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        try:
            run_record.add_attempt(self._folder, run_record.NOT_BEGUN)
        except (OSError, DataError) as error:
            say(f"error: this job did not begin, and cannot tell the next one: {error}")
        return 1 + sum(1 for _ in takewhile(run_record.NOT_BEGUN.__eq__, reversed(found)))

    def _status(self, code: int) -> str:
        """The marker's status; empty unless this launch wrote it, or succeeded because the run was finished already."""
        if code == REFUSED:
            return ""
        status = result_marker.status(self._folder)
        was_finished = self._resumed and status == result_marker.COMPLETE and code == 0
        return status if was_finished or self._written() != self._before else ""

    def _written(self) -> tuple[int, int]:
        """Identifies the marker file: a new marker is a new file, never an old one overwritten."""
        if not self._marker.is_file():
            return 0, 0
        found = self._marker.stat()
        return found.st_ino, found.st_mtime_ns


def attempts(run: Path) -> list[int]:
    """Where the run's jobs began; none if the record cannot be read, as its ranks report."""
    try:
        return run_record.RunRecord.read(run).attempts
    except DataError:
        return []
