"""Starts a child process that ends when this process does, even after ``kill -9``; and the folders for the session
files of Open MPI's mpirun, removed when their launcher is done, or by a later one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ssmpi.runtime.errors import UserError
from ssmpi.runtime.host.mpi_environment import SESSION_OWNER, SESSIONS, own_session
from ssmpi.runtime.mpi import failure

Output = int | IO[str] | None
VARIABLE = "PRTE_MCA_prte_local_tmpdir_base"  # where mpirun keeps its session files
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux; execve keeps it

_prctl = ctypes.CDLL(None).prctl  # resolved here: in the child, locks of other threads are never released


def start(
    line: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    stdin: int | None = None,
    stdout: Output = None,
    stderr: Output = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command in its own session; it gets SIGTERM when this process ends. Call it on the main thread: the
    kernel watches the thread that starts the child. Raises UserError if the command cannot be started.
    """
    parent = os.getpid()

    def end_with_parent() -> None:
        _prctl(SET_PARENT_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGTERM))
        if os.getppid() != parent:  # the parent ended before prctl took effect
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        return subprocess.Popen(
            line, env=environ, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=pass_fds, start_new_session=True,
            preexec_fn=end_with_parent,
        )  # fmt: skip
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise UserError(f"{line[0]}: cannot be started: {failure.out_of_threads()}") from None
        raise UserError(
            f"{line[0]}: cannot be started ({error.strerror}): reinstall it, or put a working one before it on PATH"
        ) from None


@dataclass(frozen=True)
class SessionFolder:
    """A folder and the variable that passes it to mpirun. A process that inherits ``lock`` keeps it from being
    removed.
    """

    path: Path
    lock: int

    @property
    def variables(self) -> dict[str, str]:
        """What to add to mpirun's environment."""
        return {VARIABLE: str(self.path)}


@contextlib.contextmanager
def session_folder() -> Iterator[SessionFolder]:
    """A new session folder for one mpirun, removed after the block; first removes those of killed launchers.

    A killed mpirun leaves /tmp/ompi.PID behind, and a later mpirun with the same process id does not start: "The PMIx
    server's listener thread failed to start".
    """
    base = Path(tempfile.gettempdir())
    remove_abandoned(base)
    with tempfile.TemporaryDirectory(prefix=SESSIONS, ignore_cleanup_errors=True) as name:
        path = Path(name)
        lock = own_session(path)
        try:
            yield SessionFolder(path, lock)
        finally:
            os.close(lock)


def remove_abandoned(base: Path) -> None:
    """Remove this user's session folders in ``base`` that no living process of this host has locked.

    One without an owner file is left alone: its launcher may be about to lock it.
    """
    for path in base.glob(f"{SESSIONS}*"):
        with contextlib.suppress(OSError):  # gone meanwhile, locked, or of another user
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                mine = os.fstat(lock).st_uid == os.geteuid()
                owner = (path / SESSION_OWNER).read_text(encoding="utf-8", errors="replace")
                if mine and owner == socket.gethostname():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
