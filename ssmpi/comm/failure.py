"""A thread's death is its rank's death, a rank's death is the job's: the guard around every thread, and the watch that
names a rank on this host that was killed from outside.

MPI alone does neither: an exception in a thread leaves the other ranks waiting, and a launcher reports a killed rank
by number, not by role.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from typing import Any, Protocol

from ssmpi.errors import PeerError, UserError


class Place(Protocol):
    """What a failure message says about this rank."""

    who: str
    host: str
    rank: int

    def abort(self, code: int) -> None:
        """End the whole job."""


def message(place: Place, thread: str, error: BaseException) -> str:
    """One message naming role, rank, host, thread and cause; a traceback only where it is not the user's to mend."""
    cause = str(error)
    if not isinstance(error, (UserError, PeerError)):
        text = "".join(traceback.format_exception(error)).rstrip()
        cause = f"{type(error).__name__}: {error}\n{text}\nThis is not expected: please report it with this log"
    return f"error: {place.who} (rank {place.rank}, host {place.host}, thread {thread}): {cause}"


@contextlib.contextmanager
def guard(place: Place, thread: str) -> Iterator[None]:
    """Run a thread's body so that its exception ends the job with one message instead of hanging it."""
    try:
        yield
    except Exception as error:
        print(message(place, thread, error), file=sys.stderr, flush=True)
        place.abort(1)


def start(place: Place, name: str, body: Any, *arguments: Any) -> threading.Thread:
    """Start a daemon thread named ``name`` under the guard."""

    def guarded() -> None:
        with guard(place, name):
            body(*arguments)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread


class Watch:
    """Names a rank on this host that was killed: a thread sleeps in ``poll`` on the processes of the other local ranks.

    A shared page tells which ranks leave on purpose, so that an ordinary end, or a failure that was already
    reported, is not reported again. Where the kernel has no pidfd the watch does nothing: the launcher still ends the job.
    """

    def __init__(self, comm: Any, place: Place, names: list[str]) -> None:
        self._place, self._names = place, names
        namespace = os.stat("/proc/self/ns/pid").st_ino if os.path.exists("/proc/self/ns/pid") else 0  # noqa: PTH
        everyone = comm.allgather((place.host, namespace, os.getpid()))
        local = [r for r, (host, space, _) in enumerate(everyone) if (host, space) == (place.host, namespace)]
        self._page = self._share(comm, local, len(everyone))
        self._fds: dict[int, int] = {}
        with contextlib.suppress(OSError, AttributeError):  # no pidfd here: see the class
            self._fds = {os.pidfd_open(everyone[r][2]): r for r in local if r != comm.rank}
        if self._fds:
            threading.Thread(target=self._run, name="watch", daemon=True).start()

    def leaving(self) -> None:
        """Say that this process may end now without being reported."""
        self._page[self._place.rank] = 1

    def _share(self, comm: Any, local: list[int], size: int) -> mmap.mmap:
        path = ""
        if comm.rank == local[0]:
            handle, path = tempfile.mkstemp(prefix="ssmpi-watch-")
            os.ftruncate(handle, size)
            os.close(handle)
        path = comm.allgather(path)[local[0]]
        with open(path, "r+b") as file:  # noqa: PTH123 - mmap wants the descriptor
            page = mmap.mmap(file.fileno(), size)
        comm.allgather(0)  # all have it open: the name can go
        if comm.rank == local[0]:
            os.unlink(path)  # noqa: PTH108
        return page

    def _run(self) -> None:
        poll = select.poll()
        for fd in self._fds:
            poll.register(fd, select.POLLIN)
        while self._fds:
            dead = sorted(self._fds.pop(fd) for fd, _ in poll.poll() if not poll.unregister(fd))
            killed = [r for r in dead if not self._page[r]]
            if killed and not self._page[self._place.rank]:
                self._report(killed)

    def _report(self, killed: list[int]) -> None:
        for rank in killed:  # marked, so that no other rank says it again
            seen, self._page[rank] = self._page[rank], 1
            if not seen:
                print(
                    f"error: {self._names[rank]} (rank {rank}, host {self._place.host}) was killed or crashed without "
                    "a message (out of memory? see 'dmesg'); the job ends here. Start it again, with more memory per "
                    "rank or more embedding_ps if memory was the cause",
                    file=sys.stderr,
                    flush=True,
                )
        self._place.abort(1)
