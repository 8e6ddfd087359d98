"""A thread that fails ends its rank, and a rank or launcher that ends takes the job with it: the guard around every
thread, and the watch that names a rank on this host that was killed from outside.

MPI alone does neither: an exception in a thread leaves the other ranks waiting, and a launcher reports a killed rank
by number, not by role. However many ranks notice a failure, a host prints one message; see ``HostFlags``.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVarTuple

from ssmpi.runtime import user_code
from ssmpi.runtime.errors import LOST, OUT_OF_MEMORY, PeerError, UserError
from ssmpi.runtime.files.log import log_and_flush
from ssmpi.runtime.host import cpu_usage
from ssmpi.runtime.host.host_memory import oom_kills
from ssmpi.runtime.host.launcher_env import rank as launched_rank
from ssmpi.runtime.mpi import signals
from ssmpi.runtime.mpi.background import run_with_timeout

if TYPE_CHECKING:
    from mpi4py import MPI

Arguments = TypeVarTuple("Arguments")

FATAL_REPORT_SECONDS = 2.0  # for printing and logging why the job ends; a slower disk or reader goes without
ENDING_SECONDS = 5.0  # for MPI to end the job after Abort; longer than FATAL_REPORT_SECONDS
RANK_0_SECONDS = 5.0  # how long rank 0 may take to report what all ranks met, and its launcher to end them
DEFER_SECONDS = 1.0  # how long a rank that is probably not the first to fail lets others report
LAUNCHER = -1  # instead of a rank
WATCHED = 3  # ranks that each rank watches
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_WAY = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)

NO_THREAD = "can't start new thread"  # Python's RuntimeError says so

NAMESPACE = Path("/proc/self/ns/pid")  # process numbers mean something only within one of these


class JobMember(Protocol):
    """A rank, as far as failure messages need it."""

    who: str
    host: str
    rank: int

    def abort(self, text: str, code: int = 1) -> None:
        """Print ``text`` unless another rank has reported a failure, and end the whole job."""


def message(member: JobMember, thread: str, error: BaseException) -> str:
    """One message naming role, rank, host, thread and cause; with a traceback only if the user cannot fix it."""
    return f"error: {member.who} (rank {member.rank}, host {member.host}, thread {thread}): {cause(error)}"


def cause(error: BaseException) -> str:
    """What went wrong, and the remedy."""
    if isinstance(error, UserError | PeerError):
        return str(error)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return f"{error}: make room there, or choose another folder"
    if isinstance(error, OSError) and error.errno in NO_WAY:
        return f"{error}: fix the path or its permissions, or choose another folder"
    if isinstance(error, OSError) and error.errno == errno.EIO:
        return f"{error}: the disk fails; look at the system's log, or choose another folder"
    if is_out_of_threads(error):
        return out_of_threads()
    if place := user_code.place_of(error):
        return f"{place}: {type(error).__name__}: {error}; this is your own code: correct it, and start again"
    text = "".join(traceback.format_exception(error)).rstrip()
    if isinstance(error, MemoryError):
        return f"{OUT_OF_MEMORY}\n{text}\nStart again with more embedding_ps, fewer threads or more memory per rank"
    return f"{type(error).__name__}: {error}\n{text}\nThis is not expected: please report it with this log"


def is_out_of_threads(error: BaseException) -> bool:
    """Whether the system refused to start a thread."""
    return isinstance(error, RuntimeError) and str(error) == NO_THREAD


def out_of_threads() -> str:
    """Why the system starts no more processes or threads, and the remedy."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return (
        "the system starts no more processes or threads for this user (ulimit -u is"
        f" {'unlimited' if limit == resource.RLIM_INFINITY else limit}; a container or a batch job may have a lower"
        " limit of its own, pids.max): raise the limit, or use fewer ranks or topology.threads on this host"
    )


def exit_code_of(error: BaseException) -> int:
    """The exit code of a process that ``error`` ended: 2 if the user can fix it, LOST if a restart may help, as where
    another program has taken the memory.
    """
    if isinstance(error, PeerError | MemoryError):
        return LOST
    in_the_way = isinstance(error, OSError) and error.errno in (*NO_ROOM, *NO_WAY, errno.EIO)
    fixable = isinstance(error, UserError) or is_out_of_threads(error) or user_code.place_of(error)
    return 2 if in_the_way or fixable else 1


@contextlib.contextmanager
def guard(member: JobMember, thread: str) -> Iterator[None]:
    """Run a thread's body so that its exception ends the job with one message instead of hanging it.

    An ordinary exit of the main thread passes: all ranks have agreed on it.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread():
            raise
        member.abort(message(member, thread, error), exit_code_of(error))


def start(
    member: JobMember, name: str, body: Callable[[*Arguments], object], *arguments: *Arguments
) -> threading.Thread:
    """Start a daemon thread named ``name`` under the guard."""

    def guarded() -> None:
        with guard(member, name), cpu_usage.counted(name):
            body(*arguments)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread


def say(text: str) -> None:
    """Write to standard error in one piece; a closed standard error must not keep a job from ending."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def start_exit_watchdog(code: int) -> None:
    """Make this process exit within ENDING_SECONDS, whatever its threads, including this one, are waiting for."""
    timer = threading.Timer(ENDING_SECONDS, os._exit, (code,))
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # there may be no more threads
        timer.start()
    signal.setitimer(signal.ITIMER_REAL, ENDING_SECONDS + 1)  # if a thread does not release the GIL


def defer_to_rank_0() -> None:
    """Before ranks have joined the job all meet the same error: rank 0 reports it, the others wait to be ended."""
    if launched_rank():
        time.sleep(RANK_0_SECONDS)


def report_fatal_error(error: BaseException) -> int:
    """Print what ended this process outside any guard, an import for instance; returns its exit code.

    In an MPI job of several ranks it does not return: the others would wait for a rank that exits without Abort.
    """
    rank, code = launched_rank(), exit_code_of(error)
    code = 1 if code == LOST else code  # no rank was lost
    defer_to_rank_0()
    where = "" if rank is None else f"rank {rank} (host {socket.gethostname()}): "
    run_with_timeout(FATAL_REPORT_SECONDS, lambda: say(f"error: {where}{cause(error)}"))
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1:
        start_exit_watchdog(code)
        mpi.COMM_WORLD.Abort(code)
    return code


class HostFlags:
    """A few bytes shared by the ranks of one host: which rank leaves on purpose, and whether a failure was reported."""

    def __init__(self, comm: MPI.Comm, local: list[int]) -> None:
        path, self._size = "", comm.size
        if comm.rank == local[0]:
            path = self._create()
        path = comm.allgather(path)[local[0]]
        self._file = open(path, "r+b")  # noqa: PTH123, SIM115 - stays open: it carries the lock
        self._bytes = mmap.mmap(self._file.fileno(), self._size + 1)
        self._threads = threading.Lock()
        comm.allgather(0)  # all have it open

    def _create(self) -> str:
        """An anonymous memory file: a rank that is killed here leaves nothing behind."""
        handle = os.memfd_create("ssmpi-watch")
        os.ftruncate(handle, self._size + 1)
        return f"/proc/{os.getpid()}/fd/{handle}"

    def leaving(self, rank: int) -> None:
        """Note that a rank exits on purpose."""
        self._bytes[rank] = 1

    def has_left(self, rank: int) -> bool:
        """Whether a rank exits on purpose."""
        return bool(self._bytes[rank])

    def report_once(self, text: str) -> bool:
        """Print ``text`` unless a rank of this host has reported; the others wait until it is printed."""
        with self._threads:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            first, self._bytes[self._size] = not self._bytes[self._size], 1
            if first:
                say("\n" + text)  # a progress bar or a launcher's message may be on this line
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return first


def watched_ranks(local: list[int], rank: int) -> list[int]:
    """The ranks that ``rank`` watches: the next few in the ring, so that the cost does not grow with the ranks of a
    host.
    """
    after = local.index(rank) + 1
    circle = local[after:] + local[: after - 1]
    return circle[:WATCHED]


class Watch:
    """Names a rank on this host that was killed: a thread sleeps in ``poll`` on the processes of the next few local
    ranks and of the launcher. Without its launcher a rank exits at once: nobody else would end it, and it may hold the
    run's lock.

    Where the kernel has no pidfd the watch does nothing: the launcher still ends the job. A rank that is alone on its
    host is watched by the launcher only, which reports its number and host.
    """

    def __init__(self, comm: MPI.Comm, member: JobMember) -> None:
        self._oom_kills = oom_kills()
        self._member, self.names = member, [f"rank {r}" for r in range(comm.size)]
        namespace = NAMESPACE.stat().st_ino if NAMESPACE.exists() else 0
        everyone = comm.allgather((member.host, namespace, os.getpid()))
        local = [r for r, (host, space, _) in enumerate(everyone) if (host, space) == (member.host, namespace)]
        self.flags = HostFlags(comm, local)
        self._fds: dict[int, int] = {}
        with contextlib.suppress(OSError, AttributeError):  # no pidfd here: see the class
            self._fds = {os.pidfd_open(everyone[r][2]): r for r in watched_ranks(local, comm.rank)}
        if launched_rank() is not None:
            with contextlib.suppress(
                OSError, AttributeError
            ):  # the same, or the launcher is outside this rank's container
                self._fds[os.pidfd_open(os.getppid())] = LAUNCHER
        atexit.register(self.flags.leaving, member.rank)  # a normal exit is not a crash
        if self._fds:
            threading.Thread(target=self._run, name="watch", daemon=True).start()

    def _run(self) -> None:
        poll = select.poll()
        for fd in self._fds:
            poll.register(fd, select.POLLIN)
        while self._fds:
            ended = [fd for fd, _ in poll.poll()]
            for fd in ended:
                poll.unregister(fd)
            gone = sorted(self._fds.pop(fd) for fd in ended)
            if LAUNCHER in gone and not self.flags.has_left(self._member.rank):
                text = (
                    "the launcher's process on this host has ended, and this rank with it"  # trainer 0 alone prints it
                )
                run_with_timeout(FATAL_REPORT_SECONDS, partial(log_and_flush, text))
                os._exit(LOST)
            killed = [r for r in gone if r != LAUNCHER and not self.flags.has_left(r)]
            if killed and not self.flags.has_left(self._member.rank) and not signals.sigterm_received(DEFER_SECONDS):
                self._member.abort(self._describe(killed), LOST)

    def _describe(self, killed: list[int]) -> str:
        ranks = " and ".join(f"{self.names[r]} (rank {r}, host {self._member.host})" for r in killed)
        were = "was" if len(killed) == 1 else "were"
        if oom_kills() > self._oom_kills:
            return (
                f"error: {ranks} {were} killed by the system, which {OUT_OF_MEMORY}; all ranks end. 'ssmpi plan' shows"
                " what the ranks need, and what would need less"
            )
        return (
            f"error: {ranks} {were} killed or crashed without a message (out of memory, or a disk that failed? see"
            " 'dmesg', and the end of the rank's own log); all ranks end. Where 'ssmpi launch' does not start the job"
            " again, do so, with more memory per rank or more embedding_ps if memory was the cause"
        )
