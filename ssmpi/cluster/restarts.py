"""Starting a job again after ranks were killed: how often, and what is left of their memory when it is over."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.cluster.requeue import say
from ssmpi.core import memory_folder
from ssmpi.core.mpi_environment import SEGMENTS
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

    @property
    def supervised(self) -> Supervised | None:
        """What the ranks need to know; None where a loss ends the job."""
        if self._options.mode == "off":
            return None
        return Supervised(self._launch, self._start, self._ended)

    def variables(self, environ: Mapping[str, str], *, here: bool = True) -> dict[str, str]:
        """What the ranks need in addition to an environment: Open MPI's own segments lie beside their memory, because
        killed ranks leave them behind too. Where all run ``here`` those of the last start are removed; else ``tidy``
        does that, and the ranks make the folder.
        """
        if SEGMENTS in environ:
            return {}
        if not here:
            return {} if self._options.mode == "off" else {SEGMENTS: str(self._folder)}
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            return {}  # the ranks say that there is no such memory
        for left in self._folder.glob("sm_segment.*"):
            left.unlink(missing_ok=True)
        return {SEGMENTS: str(self._folder)}

    def tidy(self, *, used: bool) -> list[str]:
        """What another host is asked to do between two starts, which also shows that it answers. One whose ranks have
        gone elsewhere may have memory that nobody is to go on with: with time the ranks may come back.
        """
        left = f"{self._folder}/sm_segment.*" if used else f"{self._folder}"
        return ["sh", "-c", f"rm -rf {left}"]

    @property
    def possible(self) -> bool:
        """Whether the job may be started again, now that ranks were lost; says why not after too many restarts."""
        options, now = self._options, self._clock()
        if options.mode == "off" or recoveries.read(self._run)["launch"] != self._launch:
            return False  # the run has not even begun: what keeps it from that is no loss
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
        say(f"starting the job again at once (start {self._start}; recovery.max_restarts = {most})")

    def clean(self, remote: Callable[[Sequence[str]], list[str]]) -> None:
        """Remove what ranks that were killed have left, here and on other hosts: ``remote(command)`` runs a command on
        each of them and returns those where it could not.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._options.mode == "off":
            return
        if missed := remote(["rm", "-rf", str(self._folder)]):
            say(
                f"error: {self._folder} may be left on {', '.join(missed)}, which did not answer: remove it there, or"
                " run 'ssmpi doctor --clean' there"
            )
