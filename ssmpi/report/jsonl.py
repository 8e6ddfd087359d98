"""An append-only file of JSON lines that tolerates a temporarily full disk: logging must not end the run."""

from __future__ import annotations

import os
from pathlib import Path

from ssmpi.comm.failure import cause
from ssmpi.core.log import log


class JsonlFile:
    """Appends to ``path``, after truncating it to ``known`` bytes. Lines that cannot be written are kept in memory and
    retried.
    """

    def __init__(self, path: Path, known: int) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._file.truncate(min(known, os.fstat(self._file.fileno()).st_size))
        self._waiting = b""
        self._refused = False

    @property
    def size(self) -> int:
        """Bytes so far, including lines kept in memory."""
        return os.fstat(self._file.fileno()).st_size + len(self._waiting)

    def write(self, line: str) -> None:
        """One more line."""
        self._waiting += f"{line}\n".encode()
        try:
            while self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) :]
            self._refused = False
        except OSError as error:
            if not self._refused:
                log.error(
                    f"error: {self._path} does not grow, training continues and lines wait in memory: {cause(error)}"
                )
            self._refused = True

    def close(self) -> None:
        """No more lines."""
        if lost := self._waiting.count(b"\n"):
            log.error(f"error: {self._path} lacks its last {lost} lines: the disk did not take them")
        self._file.close()
