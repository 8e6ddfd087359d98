"""``ssmpi doctor --clean``: removes what ranks have left in this host's memory when nobody could remove it any more, as
where ``ssmpi launch`` itself was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ssmpi.comm.shared_memory import hold
from ssmpi.core import memory_folder

BETWEEN_SECONDS = 60.0  # two starts of a job: a longer gap means that there is no other


def clean(memory: Path, sleep: Callable[[float], None] = time.sleep) -> int:
    """Remove this user's folders in a memory file system that no process uses, now and a minute later; print which."""
    unused = [folder for folder in memory_folder.all_in(memory) if not in_use(folder)]
    if unused:
        print(f"{len(unused)} in {memory} that nobody uses; looking again in {BETWEEN_SECONDS:.0f} s", flush=True)
        sleep(BETWEEN_SECONDS)
    for folder in unused:
        if not folder.exists() or in_use(folder):
            print(f"in use: {folder}")
            continue
        size = sum(path.stat().st_size for path in folder.iterdir())
        shutil.rmtree(folder)
        print(f"removed: {folder} ({size / 1e6:,.1f} MB)")
    if not unused:
        print(f"nothing in {memory} to remove")
    return 0


def in_use(folder: Path) -> bool:
    """Whether a process maps any of the files in a folder."""
    for path in folder.iterdir():
        with contextlib.ExitStack() as opened:
            file = os.open(path, os.O_RDWR)
            opened.callback(os.close, file)
            try:
                hold(file, fcntl.F_WRLCK)
            except BlockingIOError:
                return True
    return False
