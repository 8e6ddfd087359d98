"""The folders in a memory file system that hold the ranks' state for the next start of their job, one for each launch:
where they are, who may read them, what lies in them (``runtime.mpi.rank_memory`` writes it), and whether processes map
it. A folder may be removed at any moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import stat
import struct
from pathlib import Path
from typing import NamedTuple

from ssmpi.runtime.errors import DataError
from ssmpi.runtime.topology import Role

IN_MEMORY = ("tmpfs", "ramfs")  # kinds of file systems
OVER_NETWORK = re.compile(
    r"(nfs|cifs|smb|ceph|lustre|gpfs|beegfs|gluster|pvfs|orangefs|afs|9p|fuse\.(sshfs|ceph|gluster)).*"
)
LAUNCHER = "launcher"  # the file that a launcher locks
NOTES = ".notes.json"  # after the name of a rank's file
MAGIC, HEAD = b"ssmpimem", 64  # a rank's file has this among its first bytes
RANK = re.compile(rf"({'|'.join(Role)})-\d+")  # the memory of one
BESIDE = re.compile(rf"{LAUNCHER}|\.?{RANK.pattern}\.[a-z -]+\.json|sm_segment\..+")  # with notes, Open MPI's segments


class FileSystem(NamedTuple):
    """The file system of a folder; ``size`` and ``free`` are bytes, ``kind`` is empty if unknown."""

    kind: str
    size: int
    free: int

    @property
    def in_memory(self) -> bool:
        """Whether it keeps its files in memory only."""
        return self.kind in IN_MEMORY


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> FileSystem:
    """The file system of a folder that is there; OSError if it is not."""
    found, real = os.statvfs(folder), folder.resolve()
    kinds = {}
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines() if mounts.exists() else ():
        _, place, kind, *_ = line.split(" ")
        kinds[Path(place.replace("\\040", " "))] = kind  # of two mounts at one place the later one is visible
    kind = next((kinds[each] for each in (real, *real.parents) if each in kinds), "")
    return FileSystem(kind, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def check_disk(folder: Path) -> None:
    """DataError unless rows can be kept in this folder: it is on a disk of this host, and this user may write there."""
    if not folder.is_dir():
        raise DataError(f"embedding.storage = {str(folder)!r}: no such folder on {socket.gethostname()}: make it there")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"embedding.storage = {str(folder)!r}: user {os.geteuid()} may not write there")
    if (kind := file_system(folder).kind) in IN_MEMORY or OVER_NETWORK.fullmatch(kind):
        what = "in memory: leave the setting out" if kind in IN_MEMORY else "on the network"
        raise DataError(
            f"embedding.storage = {str(folder)!r}: a folder of {kind}, which is {what}; rows that exceed memory need a"
            " disk of this host"
        )


def of_launch(memory: str, launch: str) -> Path:
    """The folder of one launch, on each of its hosts."""
    return Path(memory) / f"ssmpi-{os.geteuid()}-{launch}"


def is_of_launch(folder: Path) -> bool:
    """Whether a folder has the name of this user's folder of a launch."""
    return folder.name.startswith(f"ssmpi-{os.geteuid()}-")


def make(folder: Path) -> None:
    """Make the folder of a launch, unless it is there; PermissionError if another user could read or change what is in
    it: memory file systems are open to all users of a host.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    check(folder)


def check(folder: Path) -> None:
    """Raise PermissionError if a launch's folder is not this user's alone; FileNotFoundError if it is not there."""
    above, found = folder.parent.stat(), folder.lstat()
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        raise PermissionError(
            f"{folder.parent}: every user may replace what is in it (mode {stat.S_IMODE(above.st_mode):04o}): set its"
            " sticky bit (chmod +t)"
        )
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder}: not a folder but {'a link' if folder.is_symlink() else 'a file'}: remove it")
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(
            f"{folder}: it is user {found.st_uid}'s, with mode {stat.S_IMODE(found.st_mode):04o}, not user"
            f" {os.geteuid()}'s with mode 0700: remove it"
        )


def all_in(memory: Path) -> list[Path]:
    """The folders of all launches of this user on this host."""
    return [path for path in sorted(memory.glob(f"ssmpi-{os.geteuid()}-*")) if _is_own_folder(path)]


def _is_own_folder(path: Path) -> bool:
    """Whether it is this user's, and no link or file; False if it is gone."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode)


def hold(file: int, kind: int) -> None:
    """Lock an open file until its last mapping ends, shared (``F_RDLCK``) or exclusively (``F_WRLCK``); BlockingIOError
    if another process holds it. These open file description locks do not interact with ``flock``.
    """
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", kind, os.SEEK_SET, 0, 0, 0))


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
    for notes in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError):  # removed meanwhile, or not written yet
            noted = json.loads(notes.read_text(encoding="utf-8"))
            run = noted.get("run") if isinstance(noted, dict) else noted  # earlier versions had a file for each note
            if isinstance(run, str):
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
            begin = file.read(HEAD)
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
