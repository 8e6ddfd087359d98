"""Relays standard error of a launcher and its ranks. Drops the launcher's banner about a failed rank if ssmpi has
reported the error already: the banner's seven lines hide the one that helps. If ssmpi has reported nothing, all of it
stays.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import threading
from collections.abc import Callable
from typing import IO

OWN_ERROR = re.compile(rb"(?:ssmpi[a-z -]*: )?error: |\d\d:\d\d:\d\d \S+ trainer 0 \| stopped: ")
LOG_LINE = re.compile(rb"\d\d:\d\d:\d\d \S+ \w+ \d+ \| ")
RULE = re.compile(rb"-{60,}\s*$")  # before and after each of Open MPI's banners
BANNER = re.compile(
    rb"(?:prterun|mpirun|mpiexec) (?:detected|noticed|has exited)|MPI_ABORT was invoked|"
    rb"Primary job +terminated normally"
)
LAUNCHER_REMARK = re.compile(
    rb"srun: error: \S+: tasks? .*: Exited with exit code|"
    rb"\[[^]]*\] PMIX ERROR: PMIX_ERR_UNREACH in file |"
    rb"(?:\[[^]]*\] )?\d+ more process\w* ha\w+ sent help message help-mpi-api|"
    rb"\[warn\] Epoll \w+\(\d+\) on fd \d+ failed"
)
HELD_SECONDS = 2.0  # a banner may overtake a rank's message
PART_SECONDS = 0.2  # launchers relay whole lines: the rest of a line comes at once, or never
ENDING_SECONDS = 3.0  # for output that arrives after the launcher has ended


def write_stderr(text: bytes) -> None:
    """Write to standard error, ignoring errors if it has no reader: otherwise the launcher's pipe would fill up and
    block the ranks.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.buffer.write(text)
        sys.stderr.buffer.flush()


class BannerFilter:
    """Writes all lines except the launcher's banners: these are held until ``release``, and dropped if ssmpi reports an
    error.
    """

    def __init__(self, write: Callable[[bytes], None] = write_stderr) -> None:
        self._write, self.error_shown = write, False
        self._block: list[bytes] = []  # a rule and the lines after it while they may be a banner
        self._held = b""

    @property
    def holds(self) -> bool:
        """Whether any line is held back."""
        return bool(self._block or self._held)

    def take(self, line: bytes) -> None:
        """Take a line, with its line end."""
        if line == b"\0\n":
            return
        line = line.lstrip(b"\0")  # Open MPI ends its message about an abort with one
        if OWN_ERROR.match(line):
            self.error_shown = True
        if OWN_ERROR.match(line) or LOG_LINE.match(line):
            if len(self._block) == 1:
                self._write(self._block.pop())
            self._write(line)
        elif LAUNCHER_REMARK.match(line):  # before a banner, after it, or in its midst
            self._held += line
        elif self._block:
            self._after_rule(line)
        elif RULE.match(line):
            self._block = [line]
        else:
            self._write(line)

    def _after_rule(self, line: bytes) -> None:
        """A line after a rule: it continues or ends a banner, or shows that there is none."""
        if len(self._block) > 1 or BANNER.match(line):
            self._block.append(line)
            if RULE.match(line):
                self._held, self._block = self._held + b"".join(self._block), []
            return
        self._write(self._block.pop())
        self.take(line)

    def release(self) -> None:
        """No more lines for now: write what is held back, or drop it if ssmpi has reported an error."""
        whole = self._held + (b"".join(self._block) if len(self._block) > 1 else b"")
        rule = b"".join(self._block) if len(self._block) == 1 else b""  # not of a banner
        self._held, self._block = b"", []
        if text := (b"" if self.error_shown else whole) + rule:
            self._write(text)


class StderrRelay:
    """A thread that relays a launcher's standard error line by line."""

    def __init__(self, source: IO[bytes], write: Callable[[bytes], None] = write_stderr) -> None:
        self._source, self._write, self.banners = source, write, BannerFilter(write)
        self._thread = threading.Thread(target=self._run, name="launcher's stderr", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        part, fd, waiting = b"", self._source.fileno(), select.poll()
        waiting.register(fd, select.POLLIN)
        while True:
            patience = PART_SECONDS if part else HELD_SECONDS if self.banners.holds else None
            if not waiting.poll(patience and 1000 * patience):
                self.banners.release()
                self._write(part.lstrip(b"\0"))
                part = b""
                continue
            found = os.read(fd, 1 << 16)
            *lines, part = (part + found).split(b"\n")
            for line in lines:
                self.banners.take(line + b"\n")
            if not found:
                break
        self.banners.release()
        self._write(part.lstrip(b"\0"))

    def end(self) -> None:
        """Wait for the last output of a launcher that has ended; a process it left behind may keep the pipe open."""
        self._thread.join(ENDING_SECONDS)
