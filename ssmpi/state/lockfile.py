"""A lock that a process holds by keeping a file open. It ends with its holder, however that dies, so it is never stale.

It uses ``flock``, which works across hosts if the file system supports that (NFS with a lock service, Lustre mounted
with ``flock``); a child that inherits the open file holds the lock too. The file says who holds it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.files.atomic_file import naming
from ssmpi.runtime.files.log import log

POLL_SECONDS = 0.5
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclasses.dataclass(frozen=True)
class LockHolder:
    """The process that holds a lock, as it wrote it into the file; ``job`` is its SLURM job, if any."""

    host: str = ""
    process: int = 0
    job: str = ""
    since: str = ""

    @classmethod
    def me(cls) -> LockHolder:
        """This process."""
        job = os.environ.get("SLURM_JOB_ID", "")
        return cls(socket.gethostname(), os.getpid(), job, time.strftime("%Y-%m-%d %H:%M:%S"))

    @classmethod
    def of(cls, file: IO[str]) -> LockHolder:
        """What the file says; all fields are empty while its holder is still writing."""
        file.seek(0)
        try:
            return cls(**parse_json(file.read()))
        except (ValueError, TypeError):
            return cls()

    def __str__(self) -> str:
        job = f" of SLURM job {self.job}" if self.job else ""
        return (
            f"process {self.process}{job} on host {self.host}, since {self.since}" if self.host else "another process"
        )

    @property
    def elsewhere(self) -> bool:
        """Whether the holder runs on another host."""
        return bool(self.host) and self.host != socket.gethostname()


class LockHeldError(Exception):
    """Another process held the lock for too long."""

    def __init__(self, holder: LockHolder) -> None:
        super().__init__(str(holder))
        self.holder = holder


def acquire(path: Path, patience: Callable[[LockHolder], float]) -> IO[str]:
    """Return the open file that holds the lock until this process and all children that inherited it have closed it.

    Waits for the present holder for ``patience(holder)`` seconds, then raises LockHeldError. On a file system without
    locks it logs a warning and continues without one.
    """
    file = path.open("a+", encoding="utf-8")
    began, told = time.monotonic(), False
    try:
        while not _taken(file, path):
            holder = LockHolder.of(file)
            if time.monotonic() - began >= patience(holder):
                raise LockHeldError(holder)
            if not told:
                log.warning(f"{path}: held by {holder}: waiting up to {patience(holder):,.0f} s for it to end")
            told = True
            time.sleep(POLL_SECONDS)
        with naming(path):
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), (json.dumps(dataclasses.asdict(LockHolder.me())) + "\n").encode())
    except BaseException:
        file.close()
        raise
    return file


def held_by(path: Path) -> LockHolder | None:
    """Who holds the lock; None if nobody does, or where that cannot be known."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), path.open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return LockHolder.of(file)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
    return None


def _taken(file: IO[str], path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.warning(
            f"{path}: no locks on this file system ({error.strerror}): make sure that only one job writes there"
        )
    return True
