"""Ends a job that does not start. Before MPI has connected the ranks there are no messages, so a frozen rank keeps the
others in ``MPI_Init``; only ``/proc`` on its own host tells.

Later, ``heartbeat`` finds a frozen rank, and ``Job`` one that gets stuck.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ssmpi.runtime.errors import LOST, STOPPED, SettingsError
from ssmpi.runtime.host.launcher_env import RANK_VARIABLES
from ssmpi.runtime.host.launcher_env import rank as launched_rank
from ssmpi.runtime.host.mpi_environment import START_LIMIT
from ssmpi.runtime.mpi import signals
from ssmpi.runtime.mpi.background import run_with_timeout
from ssmpi.runtime.mpi.failure import DEFER_SECONDS, FATAL_REPORT_SECONDS, say

LIMIT_SECONDS = 300.0  # by default; importing from a slow file system counts too
STOP_SECONDS = 20.0  # once the job was asked to stop: nothing is to be saved yet
FROZEN_SECONDS = 30.0  # of a rank that is stopped: none that computes, or waits for a disk, is in that state
CHECK_SECONDS = 0.5
LOOK_SECONDS = 5.0  # between two looks at the processes of this host
JOB = "PMIX_NAMESPACE"  # the variable that names a job; where there is none, ranks of a host have one parent
FROZEN = "T"  # a state of a process in /proc
STUCK = {FROZEN: "stopped", "D": "waiting for a disk or a file system"}


class LocalRank(NamedTuple):
    """A process of this job on this host."""

    rank: int
    process: int
    state: str


class StartWatch:
    """A thread that ends this rank, and the stuck ones of its host, if the job has not started within the limit, or if
    one of them is stopped for FROZEN_SECONDS. Time counts only while this process is awake: a job may be suspended as a
    whole.
    """

    def __init__(self) -> None:
        self._limit, self._over = limit_seconds(), threading.Event()
        if launched_rank() is not None:
            threading.Thread(target=self._run, name="start watch", daemon=True).start()

    def end(self) -> None:
        """MPI has connected the ranks."""
        self._over.set()

    def _run(self) -> None:
        waited, awake, looked = 0.0, time.monotonic(), 0.0
        frozen: dict[LocalRank, float] = {}  # what was waited for when each was first seen so
        while not self._over.wait(CHECK_SECONDS):
            now = time.monotonic()
            waited += min(now - awake, 2 * CHECK_SECONDS)
            awake = now
            if waited > looked + LOOK_SECONDS:
                looked = waited
                frozen = {rank: frozen.get(rank, waited) for rank in local_ranks() if rank.state == FROZEN}
                if waited >= FROZEN_SECONDS + min(frozen.values(), default=waited):
                    end_job(waited)
            if waited > shortened(self._limit):
                end_job(waited)


def limit_seconds() -> float:
    """How long ranks may take to start; SettingsError if the variable is no such time."""
    text = os.environ.get(START_LIMIT, str(LIMIT_SECONDS))
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise SettingsError(f"{START_LIMIT} is '{text}': set it to a number of seconds above 0, or leave it out")


def shortened(limit: float) -> float:
    """The limit, once a stop is requested a short one."""
    return min(limit, STOP_SECONDS) if signals.stop_requested_at_start() else limit


def end_job(waited: float) -> None:
    """Say what keeps the job from starting, kill the ranks of this host that are stuck, and exit so that the launcher
    ends all ranks: with STOPPED if the job was asked to stop and none of them is frozen, else with LOST.
    """
    here, asked = local_ranks(), signals.stop_requested_at_start()
    stuck = [each for each in here if each.state in STUCK and each.process != os.getpid()]
    stopping = asked and not any(each.state == FROZEN for each in stuck)
    able = sorted(each.rank for each in here if each not in stuck)
    if not stuck:
        time.sleep(DEFER_SECONDS)  # a host that knows who is missing says so first
    if able[:1] == [launched_rank()]:  # one message a host
        run_with_timeout(FATAL_REPORT_SECONDS, partial(say, message(stuck, waited, stopping)))
        for each in stuck:  # some launchers wait for them
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.process, signal.SIGKILL)
    else:
        time.sleep(LOOK_SECONDS + FATAL_REPORT_SECONDS)  # it may look later than this rank
    os._exit(STOPPED if stopping else LOST)


def message(stuck: list[LocalRank], waited: float, stopping: bool = False) -> str:
    """Why the job ends before it has begun."""
    host = socket.gethostname()
    which = " and ".join(f"rank {each.rank} (process {each.process}) is {STUCK[each.state]}" for each in stuck)
    if stopping:
        return f"host {host}: stopped before all ranks had started{which and f' ({which})'}: there is nothing to save"
    return (
        f"error: host {host}: not all ranks have started within {waited:.0f} s:"
        f" {which or 'no rank of this host is stopped, so look at the other hosts and at the network'}; all ranks end."
        f" Where 'ssmpi launch' does not start the job again, do so, with a longer {START_LIMIT} if it was only slow"
    )


def local_ranks() -> list[LocalRank]:
    """The processes on this host that are ranks of this job, this one among them, as far as this user may see them."""
    job, parent, found = os.environ.get(JOB), os.getppid(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            variables = dict(word.split("=", 1) for word in words if "=" in word)
            state, above = (
                (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()[:2]
            )
            number = next((variables[name] for name in RANK_VARIABLES if variables.get(name, "").isdigit()), None)
            if number is not None and (variables.get(JOB) == job if job else int(above) == parent):
                found.append(LocalRank(int(number), int(folder.name), state))
    return found
