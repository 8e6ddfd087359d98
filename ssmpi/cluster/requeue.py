"""How an attempt at a run ended, and whether SLURM should make another: told by the marker that the run wrote, never by the
launcher's exit code alone, which is 0 after a host was lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ssmpi.core import log, result_marker
from ssmpi.core.errors import LOST, STOPPED
from ssmpi.core.run_files import RESULT_NAME

REFUSED = 2  # what the ranks end with when they did not begin
OURS = (1, REFUSED, 130)  # what ssmpi itself ends with when another attempt would end likewise
SRUNS = 1  # also what srun ends with after a rank was killed for its memory


class Attempt:
    """One start of a run, in a batch job or by hand. ``requeue`` puts a batch job back where another attempt may help;
    ``resumed``: a run that is finished already is what was asked for.
    """

    def __init__(self, folder: Path, *, requeue: bool, resumed: bool = False) -> None:
        self._folder, self._requeue, self._resumed = folder, requeue, resumed
        self._marker = folder / RESULT_NAME
        self._before, self._logs = self._written(), log.lengths(folder)

    def conclude(self, code: int, *, cancelled: bool, silent: Callable[[], list[str]] = list) -> int:
        """The exit code of this attempt, after a word about it, and another place in the queue where that helps.

        ``code`` is the launcher's. ``cancelled``: SLURM is taking the job down, and will itself start it again or not.
        ``silent`` finds the hosts that do not answer any more, where nobody has said which one was lost.
        """
        status = self._status(code)
        if status == result_marker.COMPLETE:
            return 0
        if status == result_marker.STOPPED:
            return self._again("stopped and saved", STOPPED, cancelled)
        if code == STOPPED:  # and no marker: the ranks have said why
            return self._again(
                "stopped, but not saved in time: the next attempt goes on from the checkpoint before",
                STOPPED,
                cancelled,
            )
        told = log.end_recorded(self._folder, self._logs)
        begun = log.lengths(self._folder) != self._logs  # from here on a rank that fails leaves a record of it
        if code in OURS and (told or not (begun and code == SRUNS)):
            return code
        if code != LOST and not told:
            say(f"error: the launcher ended with {code}, but the run did not end by itself (see {self._folder})")
            if lost := silent():
                say(f"error: no answer from {', '.join(lost)}: mend it or leave it out of launcher.hosts, start again")
        return self._again("a rank or a host was lost", LOST, cancelled)

    def _again(self, why: str, code: int, cancelled: bool) -> int:
        job = os.environ.get("SLURM_JOB_ID", "")
        if self._requeue and job and not cancelled:
            say(f"{why}: job {job} goes back into the queue")
            done = subprocess.run(["scontrol", "requeue", job]).returncode
            if done not in (0, -signal.SIGTERM):  # which takes this job down, scontrol with it
                say(f"error: 'scontrol requeue {job}' ended with {done}: submit the job again, it goes on where it was")
        return code

    def _status(self, code: int) -> str:
        """What the marker says, empty unless this attempt has written it, or has gone well in finding the run finished."""
        if code == REFUSED:
            return ""
        status = result_marker.status(self._folder)
        found_finished = self._resumed and status == result_marker.COMPLETE and code == 0
        return status if found_finished or self._written() != self._before else ""

    def _written(self) -> tuple[int, int]:
        """Which file the marker is: a new one is never written over an old one."""
        if not self._marker.is_file():
            return 0, 0
        found = self._marker.stat()
        return found.st_ino, found.st_mtime_ns


def say(text: str) -> None:
    """A line in the job's log."""
    print(text, file=sys.stderr, flush=True)
