"""Whether processes map the files in a folder of ranks' memory, which may be removed at any moment."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
from pathlib import Path

from ssmpi.runtime.mpi.memory_file import FIXED, MAGIC
from ssmpi.runtime.mpi.rank_memory import PersistedKey
from ssmpi.runtime.mpi.shared_memory import hold
from ssmpi.runtime.topology import Role

LAUNCHER = "launcher"  # the file that a launcher locks
RANK = re.compile(rf"({'|'.join(Role)})-\d+")  # the memory of one
BESIDE = re.compile(rf"{LAUNCHER}|\.?{RANK.pattern}\.[a-z -]+\.json|sm_segment\..+")  # with notes, Open MPI's segments


def files_in(folder: Path) -> dict[Path, int]:
    """The files in a folder with their sizes; links, and files that vanish meanwhile, are skipped."""
    found = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found[path] = status.st_size
    return found


def in_use(folder: Path) -> bool:
    """Whether a process maps any of the files in a folder."""
    for path in files_in(folder):
        with contextlib.ExitStack() as opened, contextlib.suppress(FileNotFoundError):
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            opened.callback(os.close, file)
            try:
                hold(file, fcntl.F_WRLCK)
            except BlockingIOError:
                return True
    return False


def runs_of(folder: Path) -> set[Path]:
    """The run folders that the memory of a launch belongs to."""
    found = set()
    for note in folder.glob(f"*.{PersistedKey.RUN}.json"):
        with contextlib.suppress(OSError, ValueError):  # removed meanwhile, or not written yet
            if isinstance(run := json.loads(note.read_text(encoding="utf-8")), str):  # earlier versions noted others
                found.add(Path(run))
    return found


def strangers(folder: Path) -> list[str]:
    """Names of what lies in a folder and is neither a rank's memory nor what lies beside it."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(path.name for path in folder.iterdir() if not _is_own(path))
    return []


def _is_own(path: Path) -> bool:
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        if not RANK.fullmatch(path.name):
            return bool(BESIDE.fullmatch(path.name))
        with path.open("rb") as file:
            begin = file.read(FIXED.size)
    except FileNotFoundError:  # a rank that ends removes its own
        return True
    return MAGIC in begin or not any(begin)  # a rank that was killed at once has written nothing


def claim(folder: Path) -> int:
    """Keep a folder in use until this process ends; returns the open file that does so."""
    file = os.open(folder / LAUNCHER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    hold(file, fcntl.F_RDLCK)
    return file


def remove(folder: Path) -> None:
    """Remove a folder of ranks' memory, which others may be removing too: as much as it can, then OSError if something
    is left.
    """
    kept = []

    def failed(_: object, __: str, what: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(what[1], FileNotFoundError):
            kept.append(what[1])

    shutil.rmtree(folder, onerror=failed)
    if kept:
        raise kept[0]  # the others follow from it, as that a folder is not empty
