"""Files that appear whole or not at all: written under a temporary name, flushed to disk and renamed; one that fails is
removed. The name is random, and the file new: in a folder such as /tmp others could put a link there. While it is
written it is locked; one that is not was left by a writer that was killed, and the next writer removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ssmpi.runtime.errors import UserError

# Bytes written at a time: larger writes take free blocks of 2 MB, which virtual machines may have given to their host.
WRITE_BYTES = 1 << 20
MARK_BYTES = 1 << 16  # at the beginning of a file, and at its end
RANDOM = "[0-9a-f]{8}"  # in a temporary name


def check_replaceable(path: Path, mark: re.Pattern[bytes]) -> None:
    """Raise UserError if a file is at ``path`` without the ``mark`` of earlier outputs of the same command, which
    matches its first bytes, followed by its last ones: a slip must not cost an input, a model or a run file.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        begin = file.read(MARK_BYTES)
        file.seek(max(len(begin), file.seek(0, os.SEEK_END) - MARK_BYTES))
        content = begin + file.read()
    if content and not mark.match(content):
        raise UserError(f"{path}: is there, and not an earlier output of this command; name another file, or remove it")


def check(path: Path) -> None:
    """Raise UserError unless a file can be written at ``path``; call it before the work that fills the file."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name a file to write, perhaps one in it")
    if path.exists() and not path.is_file():  # renaming would put a file in its place, /dev/null included
        raise UserError(f"{path}: is a device or a pipe, which would be replaced; name a file to write")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}; make it, or name another file")
    try:
        beside, file = _create_beside(path)
        beside.unlink()
        os.close(file)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):  # neither another name nor a permission would help
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); name another file, or permit this one"
        ) from error


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an error of reading or writing this file its name: an OSError that names none, and what HDF5 says of a full
    disk, many lines that may come as a RuntimeError.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        if number := re.search(r"\berrno = (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
        raise


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it is renamed to ``path`` if the block succeeds and removed if it fails.
    UserError at once if no file can be written there. Errors in the block are named as by ``naming``.
    """
    check(path)
    _remove_left(path)
    beside, file = _create_beside(path)
    try:
        with naming(path):
            yield beside
            with beside.open("rb+") as written:
                os.fsync(written.fileno())
            beside.replace(path)
            sync_folder(path.parent)  # else a power cut may undo the renaming
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == os.fspath(beside):
            error.filename = os.fspath(path)  # the other one means nothing to anybody
        raise
    finally:
        os.close(file)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, content: bytes | str) -> None:
    """Write a small file atomically; text as UTF-8."""
    with whole(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a ``.npy`` file atomically. ``np.save`` would not notice that a disk fills up at its end."""
    array = np.ascontiguousarray(array)
    with whole(path) as beside, beside.open("wb") as out:
        np.lib.format.write_array_header_1_0(out, np.lib.format.header_data_from_array_1_0(array))
        write_all(out, array)


def write_all(out: BinaryIO, array: np.ndarray) -> None:
    """Write all bytes of a contiguous array, at most ``WRITE_BYTES`` at a time."""
    left = array.reshape(-1).view(np.uint8).data
    while left.nbytes:
        left = left[out.write(left[:WRITE_BYTES]) :]


def temporary(names: str) -> str:
    """A pattern of the temporary names of files with ``names``, a pattern; earlier versions had no random part."""
    return rf"\.({names})(\.{RANDOM})?\.tmp"


def _create_beside(path: Path) -> tuple[Path, int]:
    """A new empty file beside ``path``, and its descriptor, which locks it."""
    while True:
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH)
        if os.fstat(file).st_nlink:  # else somebody has removed it as one that was left
            return beside, file
        os.close(file)


def _remove_left(path: Path) -> None:
    """Remove what killed writers of ``path`` have left: files of this user with such a name that nobody locks."""
    name, there = re.compile(rf"\.{re.escape(path.name)}\.{RANDOM}\.tmp"), list[Path]()
    with contextlib.suppress(PermissionError):  # a folder that must not be listed
        there += [each for each in path.parent.iterdir() if name.fullmatch(each.name)]
    for left in there:
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            file = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            opened.callback(os.close, file)
            about = os.fstat(file)
            if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
