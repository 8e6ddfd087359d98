"""Folders for the session files of Open MPI's mpirun, removed when their launcher is done, or by a later one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ssmpi.runtime.host.mpi_environment import SESSION_OWNER, SESSIONS, own_session

VARIABLE = "PRTE_MCA_prte_local_tmpdir_base"  # where mpirun keeps its session files


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
