"""Who may write to a run: the job whose first rank holds ``job.lock``, started by the launch that holds
``launch.lock``, if a launch restarts it. Imports no MPI: the launcher needs it too.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files.run_files import LAUNCH_LOCK, LOCK_NAME, is_run_folder
from ssmpi.state import lockfile
from ssmpi.state.checkpoint import disk

ENDING_SECONDS = 3.0  # for a job on this host that is about to end
LEASE_SECONDS = 120.0  # a lost host keeps its locks on a shared file system until its lease ends (NFS: 90 s)


def lock(folder: Path, name: str = LOCK_NAME) -> IO[str]:
    """Make the folder and lock it against other jobs while the returned file is open; SettingsError if another job
    holds the lock.
    """
    disk.make_folders(folder)
    try:
        return lockfile.acquire(folder / name, lambda holder: LEASE_SECONDS if holder.elsewhere else ENDING_SECONDS)
    except lockfile.LockHeldError as error:
        raise refusal(folder, error.holder) from None


def check_launch(run: Path) -> None:
    """SettingsError if a launch holds the run, which may be between two starts."""
    if holder := lockfile.held_by(run / LAUNCH_LOCK):
        raise refusal(run, holder)


def refusal(folder: Path, holder: lockfile.LockHolder) -> SettingsError:
    """Another job is using the run."""
    end = f"end it ('{f'scancel {holder.job}' if holder.job else f'kill {holder.process}'}')"
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
                self._file = lockfile.acquire(self._run / LAUNCH_LOCK, lambda holder: 0.0)
            except (lockfile.LockHeldError, OSError):  # a full disk, for instance; it is tried again
                return False
        return self._file is not None

    def release(self) -> None:
        """The launch has ended."""
        if self._file:
            self._file.close()
