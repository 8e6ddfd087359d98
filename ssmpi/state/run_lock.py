"""Who may write to a run: the job whose first rank holds ``job.lock``, started by the launch that holds
``launch.lock``, if a launch restarts it. Imports no MPI: the launcher needs it too.

A process holds a lock by keeping a file open. It ends with its holder, however that dies, so it is never stale. It uses
``flock``, which works across hosts if the file system supports that (NFS with a lock service, Lustre mounted with
``flock``); a child that inherits the open file holds the lock too. The file says who holds it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files.atomic_file import naming
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import LAUNCH_LOCK, LOCK_NAME, is_run_folder
from ssmpi.runtime.host import schedulers
from ssmpi.state.checkpoint import disk

POLL_SECONDS = 0.5
ENDING_SECONDS = 3.0  # for a job on this host that is about to end
LEASE_SECONDS = 120.0  # a lost host keeps its locks on a shared file system until its lease ends (NFS: 90 s)
FULL = (errno.ENOSPC, errno.EDQUOT)
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclasses.dataclass(frozen=True)
class LockHolder:
    """The process that holds a lock, as it wrote it into the file; ``job`` names its batch job, if any, ``cancel``
    is the command that ends it.
    """

    host: str = ""
    process: int = 0
    job: str = ""
    since: str = ""
    cancel: str = ""

    @classmethod
    def me(cls) -> LockHolder:
        """This process."""
        scheduler = schedulers.current()
        job = f"{scheduler.name} {scheduler.job_name()}" if scheduler and scheduler.cancel else ""
        cancel = scheduler.cancellation() if scheduler else f"kill {os.getpid()}"
        return cls(socket.gethostname(), os.getpid(), job, time.strftime("%Y-%m-%d %H:%M:%S"), cancel)

    @classmethod
    def of(cls, file: IO[str]) -> LockHolder:
        """What the file says; all fields are empty while its holder is still writing."""
        file.seek(0)
        try:
            return cls(**parse_json(file.read()))
        except (ValueError, TypeError):
            return cls()

    def __str__(self) -> str:
        job = f" of {self.job}" if self.job else ""
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


def check_writable(folder: Path) -> None:
    """Raise SettingsError unless a file can be made in ``folder``, or in its nearest existing parent.

    A full disk passes: the check of the space that is needed names figures.
    """
    there = folder
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        if error.errno not in FULL:
            raise SettingsError(
                f"{folder}: cannot be written ({there}: {error.strerror}): choose another run.folder, or make that one "
                "writable"
            ) from None


def lock(folder: Path, name: str = LOCK_NAME) -> IO[str]:
    """Make the folder and lock it against other jobs while the returned file is open; SettingsError if another job
    holds the lock.
    """
    disk.make_folders(folder)
    try:
        return acquire(folder / name, lambda holder: LEASE_SECONDS if holder.elsewhere else ENDING_SECONDS)
    except LockHeldError as error:
        raise refusal(folder, error.holder) from None


def check_launch(run: Path) -> None:
    """SettingsError if a launch holds the run, which may be between two starts."""
    if holder := held_by(run / LAUNCH_LOCK):
        raise refusal(run, holder)


def refusal(folder: Path, holder: LockHolder) -> SettingsError:
    """Another job is using the run."""
    end = f"end it ('{holder.cancel}')" if holder.cancel else "end it"
    return SettingsError(
        f"{folder}: another job is using this run ({holder}): wait for it to end, {end}, or choose another run.folder"
    )


class LaunchLock:
    """The lock on a run that a launch holds for its whole life, over its starts. Nothing is written before there is a
    run: until then it is not held, and the first rank alone decides whether a run may start in the folder.
    """

    def __init__(self, run: Path) -> None:
        """SettingsError if there is a run that another launch holds."""
        self._run = run
        self._file = lock(run, LAUNCH_LOCK) if is_run_folder(run) else None

    def take(self) -> bool:
        """Whether it is held, from now on if there is a run by now."""
        if self._file is None and is_run_folder(self._run):
            try:
                self._file = acquire(self._run / LAUNCH_LOCK, lambda holder: 0.0)
            except (LockHeldError, OSError):  # a full disk, for instance; it is tried again
                return False
        return self._file is not None

    def release(self) -> None:
        """The launch has ended."""
        if self._file:
            self._file.close()
