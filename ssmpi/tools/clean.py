"""``ssmpi doctor --clean``: removes memory, or rows on disk, that ranks left on this host because no process could
clean up, for instance after ``ssmpi launch`` itself was killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.run_files import LAUNCH_LOCK
from ssmpi.runtime.host import memory_folder
from ssmpi.runtime.host.memory_folder import files_in, in_use, remove, runs_of, strangers
from ssmpi.runtime.mpi.failure import say
from ssmpi.state import run_lock

BETWEEN_SECONDS = 60.0  # two starts of a job: a longer gap means that there is no other


def needed(folder: Path) -> bool:
    """Whether a process maps memory in this folder, or a launch holds the run that it belongs to: between two starts no
    process maps it, and some are minutes apart.
    """
    return in_use(folder) or any(run_lock.held_by(run / LAUNCH_LOCK) for run in runs_of(folder))


def _is_memory(folder: Path) -> bool:
    """Whether a folder holds ranks' memory and nothing else; says what it holds."""
    if found := strangers(folder):
        print(f"kept: {folder} holds {found[0]}, which is not of a rank: remove the folder by hand if nobody needs it")
    return not found


def clean(memory: Path, sleep: Callable[[float], None] = time.sleep) -> int:
    """Remove this user's folders of launches in ``memory``, in a memory file system or on a local disk, that no process
    uses, now and a minute later; print which. 2 if one of them cannot be removed, which is named. One that holds
    anything else stays: it may be the user's own. DataError if ``memory`` is on the network.
    """
    names = "recovery.memory_folder or embedding.storage of the run"
    if not memory.is_dir():
        raise DataError(f"{memory}: no such folder; name {names}")
    if memory_folder.OVER_NETWORK.fullmatch(kind := memory_folder.file_system(memory).kind):
        raise DataError(f"{memory}: a folder of {kind}, where other hosts may use what lies in it; name {names}")
    failed = False
    unused = [folder for folder in memory_folder.all_in(memory) if _is_memory(folder) and not needed(folder)]
    if unused:
        print(f"{len(unused)} in {memory} that nobody uses; looking again in {BETWEEN_SECONDS:.0f} s", flush=True)
        sleep(BETWEEN_SECONDS)
    for folder in unused:
        if not _is_memory(folder):
            continue
        if needed(folder):
            print(f"in use: {folder}")
        elif folder.exists():
            size = sum(files_in(folder).values())
            try:
                remove(folder)
            except OSError as error:
                failed = True
                say(f"error: {folder}: cannot be removed ({error}): unmount what lies there, or remove it by hand")
            else:
                print(f"removed: {folder} ({size / 1e6:,.1f} MB)")
        else:
            print(f"gone meanwhile: {folder}")
    if not unused:
        print(f"nothing in {memory} to remove")
    return 2 if failed else 0
