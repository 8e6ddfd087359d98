"""Restarts a job after ranks were killed, within limits, and cleans up their memory at the end."""

from __future__ import annotations

import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.cluster.requeue import say
from ssmpi.comm import memory_use
from ssmpi.host import memory_folder
from ssmpi.host.mpi_environment import SEGMENTS
from ssmpi.report import recoveries
from ssmpi.run.request import Supervised

if TYPE_CHECKING:
    from ssmpi.core.run_options import RecoveryOptions


class Restarts:
    """The starts of one launch of the run in a folder. ``clock`` gives seconds."""

    def __init__(self, run: Path, options: RecoveryOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._options, self._clock = run, options, clock
        self._launch, self._start, self._ended = secrets.token_hex(6), 1, 0.0
        self._times: list[float] = []  # of restarts
        self._folder = memory_folder.of_launch(options.memory_folder, self._launch)
        self._lock = 0

    @property
    def supervised(self) -> Supervised | None:
        """What the ranks need to know; None if a loss ends the job."""
        if self._options.mode == "off":
            return None
        return Supervised(self._launch, self._start, self._ended)

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
                self._lock = self._lock or memory_use.claim(self._folder)
        except OSError:
            return {}  # the ranks report that there is no such memory
        for left in self._folder.glob("sm_segment.*"):
            left.unlink(missing_ok=True)
        return {SEGMENTS: str(self._folder)}

    def tidy(self, *, used: bool) -> list[str]:
        """The command to run on another host between two starts, which also shows whether it answers. A host whose
        ranks have moved away may hold stale memory, which must be removed because ranks may return.
        """
        folder = shlex.quote(str(self._folder))
        return ["sh", "-c", f"rm -rf {folder}/sm_segment.*" if used else f"rm -rf {folder}"]

    @property
    def possible(self) -> bool:
        """Whether the job may be restarted after ranks were lost; after too many restarts, logs why not."""
        options, now = self._options, self._clock()
        if options.mode == "off" or recoveries.read(self._run)["launch"] != self._launch:
            return False  # the run has not begun, so the cause is not a loss
        self._times = [at for at in self._times if now - at < 60 * options.within_minutes]
        if len(self._times) < options.max_restarts:
            return True
        say(
            f"error: the job was started again {len(self._times)} times within {options.within_minutes:g} min"
            " (recovery.max_restarts, recovery.within_minutes), and not again: its logs say why its ranks end"
        )
        return False

    def begin(self) -> None:
        """Another start."""
        self._ended = time.time()
        self._times.append(self._clock())
        self._start += 1
        most = self._options.max_restarts
        say(f"restarting the job at once (start {self._start}; recovery.max_restarts = {most})")

    def clean(self, remote: Callable[[Sequence[str]], list[str]]) -> None:
        """Remove what killed ranks left behind, here and on other hosts: ``remote(command)`` runs a command on each of
        them and returns those where that failed.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._options.mode == "off":
            return
        if missed := remote(["rm", "-rf", str(self._folder)]):
            say(
                f"error: {self._folder} may be left on {', '.join(missed)}, which did not answer: remove it there, or"
                " run 'ssmpi doctor --clean' there"
            )
