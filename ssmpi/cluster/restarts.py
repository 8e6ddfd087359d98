"""Restarts a job after ranks were killed, within limits, and cleans up their memory at the end."""

from __future__ import annotations

import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.runtime.errors import DIVERGED, OUT_OF_MEMORY, DataError
from ssmpi.runtime.files import log
from ssmpi.runtime.host import memory_folder
from ssmpi.runtime.host.host_memory import oom_kills
from ssmpi.runtime.host.mpi_environment import SEGMENTS
from ssmpi.runtime.mpi.failure import say
from ssmpi.state.recovery.run_record import RunRecord
from ssmpi.state.recovery.start import Supervised

if TYPE_CHECKING:
    from ssmpi.runtime.run_options import RecoveryOptions
    from ssmpi.state.recovery.run_record import Left

NOT_BEGUN = 2  # restarts of a run that has not begun: what prevented it twice prevents it again
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds before a restart after one that trained on nothing new


class Restarts:
    """The starts of one launch of the run in a folder; it continues the launch ``left``, if there is one, whose memory
    may have survived. ``clock`` gives seconds. ``storage`` is where rows lie on disk, if they do.
    """

    def __init__(
        self, run: Path, options: RecoveryOptions, clock: Callable[[], float] = time.monotonic,
        left: Left | None = None, storage: str = "",
    ) -> None:  # fmt: skip
        self._run, self._options, self._clock = run, options, clock
        self._launch, self._first = (left.launch, left.start + 1) if left else (secrets.token_hex(6), 1)
        self._start, self._ended, self._began = self._first, time.time(), datetime.now(UTC)
        self._times: list[float] = []  # of restarts
        self._best, self._without_progress = -1, 0  # examples; restarts since one resumed after more of them
        self._oom_kills = oom_kills()
        self._folder = memory_folder.of_launch(options.memory_folder, self._launch)
        stored = [memory_folder.of_launch(storage, self._launch)] if storage else []
        self._folders = [self._folder, *stored]
        self._lock = 0

    @property
    def supervised(self) -> Supervised | None:
        """What the ranks need to know; None if a loss ends the job."""
        if self._options.mode == "off":
            return None
        return Supervised(self._launch, self._start, self._ended, self._first)

    def variables(self, environ: Mapping[str, str], *, here: bool = True) -> dict[str, str]:
        """Variables for the ranks besides the ``environ``: Open MPI's segments go beside the ranks' memory, because
        killed ranks leave them behind too. If all ranks run ``here``, those of the last start are removed; otherwise
        ``tidy`` does that, and the ranks make the folder.
        """
        if SEGMENTS in environ:
            return {}
        if not here:
            return {} if self._options.mode == "off" else {SEGMENTS: str(self._folder)}
        try:
            memory_folder.make(self._folder)
            if self._options.mode == "off":  # then no rank maps a file that shows that the folder is in use
                self._lock = self._lock or memory_folder.claim(self._folder)
        except OSError:
            return {}  # the ranks report that there is no such memory
        for left in self._folder.glob("sm_segment.*"):
            left.unlink(missing_ok=True)
        return {SEGMENTS: str(self._folder)}

    def tidy(self, *, used: bool) -> list[str]:
        """The command to run on another host between two starts, which also shows whether it answers. A host whose
        ranks have moved away may hold stale memory, which must be removed because ranks may return.
        """
        segments = f"{shlex.quote(str(self._folder))}/sm_segment.*"
        return ["sh", "-c", f"rm -rf {segments if used else shlex.join(map(str, self._folders))}"]

    @property
    def begun(self) -> bool:
        """Whether a start of this launch has begun the run: else its end is no loss."""
        record = self._record()
        return record is not None and record.launch == self._launch and record.start >= self._first

    def _record(self) -> RunRecord | None:
        try:
            return RunRecord.read(self._run)
        except DataError:  # a rank has reported it
            return None

    def note_loss(self, *, killed: bool = False) -> bool:
        """Ranks were lost, ``killed`` if certainly by a signal: take note of how far the last start came. False if the
        job may not be restarted, such as one that has not begun and was not killed; after too many restarts, logs why.
        """
        options, now = self._options, self._clock()
        if options.mode == "off" or not (self.begun or killed):
            return False
        if (record := self._record()) and record.best() > self._best:
            self._best, self._without_progress = record.best(), 0
        self._times = [at for at in self._times if now - at < 60 * options.within_minutes]
        if self._out_of_memory():
            say(f"the last start {OUT_OF_MEMORY}: 'ssmpi plan' shows the memory of its ranks and how to lower it")
            if self._without_progress:
                say("error: the last start made no progress: the job is not restarted")
                return False
        if len(self._times) >= options.max_restarts:
            how = f"within {options.within_minutes:g} min (recovery.max_restarts, recovery.within_minutes)"
        elif not self.begun and self._without_progress >= NOT_BEGUN:
            how = "before the run had begun"
        elif self._without_progress >= options.max_restarts:
            how = "without training on anything new (recovery.max_restarts)"
        else:
            return True
        many = max(len(self._times), self._without_progress)
        say(f"error: the job was restarted {many} times {how}, and ends now: its logs say why its ranks do")
        return False

    def _out_of_memory(self) -> bool:
        """Whether memory ran out in the last start, as a rank has logged, or the system has counted on this host."""
        before, self._oom_kills = self._oom_kills, oom_kills()
        return self._oom_kills > before or OUT_OF_MEMORY in log.last_end(self._run, self._began)

    def pause(self) -> float:
        """Seconds to wait before the next start, which are logged: none if the last one resumed after more examples
        than any before, else more each time, so that what ends the ranks has time to pass.
        """
        seconds = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._without_progress - 1)) if self._without_progress else 0.0
        when = f"in {seconds:.0f} s" if seconds else "at once"
        most = self._options.max_restarts
        say(f"restarting the job {when} (start {self._start + 1}; recovery.max_restarts = {most})")
        return seconds

    def begin(self) -> None:
        """Another start."""
        self._ended = time.time()
        self._times.append(self._clock())
        self._start += 1
        self._without_progress += 1

    def keep(self, hosts: Sequence[str], remote: Callable[[Sequence[str]], list[str]]) -> bool:
        """Leave the ranks' memory to the run's next launch, because it may be ahead of what is saved, and say so; False
        if there is none, or if it is worth nothing. ``hosts`` are those of the ranks, if not this one only; ``remote``
        is as for ``clean``.
        """
        diverged, record = DIVERGED in log.last_end(self._run, self._began), self._record()
        if self._options.mode == "off" or diverged or (record and record.launch != self._launch):
            return False
        for left in self._folder.glob("sm_segment.*"):
            left.unlink(missing_ok=True)
        if not hosts and not any(self._folder.glob("*")):
            return False
        remote(self.tidy(used=True))
        say(
            f"the memory of the ranks stays in {' and '.join(map(str, self._folders))}{' on ' * bool(hosts)}"
            f"{', '.join(hosts)}: the next launch of this run resumes from it. 'ssmpi doctor --clean' there removes it;"
            " with '--checkpoint whole' the next launch resumes from the newest checkpoint instead"
        )
        return True

    def clean(self, remote: Callable[[Sequence[str]], list[str]]) -> None:
        """Remove what killed ranks left behind, here and on other hosts: ``remote(command)`` runs a command on each of
        them and returns those where that failed.
        """
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        if self._options.mode == "off":
            return
        folders = [str(folder) for folder in self._folders]
        if missed := remote(["rm", "-rf", *folders]):
            say(
                f"error: {' and '.join(folders)} may be left on {', '.join(missed)}, which did not answer: remove them"
                " there"
            )
