"""Passes on what a launcher and its ranks write to standard error, without the launcher's own account of how a rank ended where
ssmpi has told that already: seven lines that hide the one which helps. Where ssmpi has said nothing they stay, all of them.
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

OURS = re.compile(rb"(?:ssmpi[a-z -]*: )?error: |\d\d:\d\d:\d\d \S+ trainer 0 \| stopped: ")
LOGGED = re.compile(rb"\d\d:\d\d:\d\d \S+ \w+ \d+ \| ")
RULE = re.compile(rb"-{60,}\s*$")  # before and after each of Open MPI's banners
BANNER = re.compile(
    rb"(?:prterun|mpirun|mpiexec) (?:detected|noticed|has exited)|MPI_ABORT was invoked|Primary job +terminated normally"
)
REMARK = re.compile(
    rb"srun: error: \S+: tasks? .*: Exited with exit code|\[[^]]*\] \d+ more process\w* ha\w+ sent help message help-mpi-api"
)
HELD_SECONDS = 2.0  # a banner may overtake a rank's word
PART_SECONDS = 0.2  # launchers pass on whole lines: the rest of one comes at once, or never
ENDING_SECONDS = 3.0  # for what still comes when the launcher has ended


def aloud(text: bytes) -> None:
    """Write to standard error; that nobody reads it must not stop the ranks, whose words would fill the pipe."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.buffer.write(text)
        sys.stderr.buffer.flush()


class Banners:
    """Takes lines, and writes all but the banners of the launcher, which it holds until ``release`` or until ssmpi has spoken."""

    def __init__(self, write: Callable[[bytes], None] = aloud) -> None:
        self._write, self.spoken = write, False
        self._block: list[bytes] = []  # a rule, and what follows it as far as it may be a banner
        self._held = b""

    @property
    def holds(self) -> bool:
        """Whether something waits."""
        return bool(self._block or self._held)

    def take(self, line: bytes) -> None:
        """A line, with its end."""
        bare = line.lstrip(b"\0")  # Open MPI ends with one what it says of an abort
        if OURS.match(bare):
            self.spoken = True
        if OURS.match(bare) or LOGGED.match(bare):
            if len(self._block) == 1:
                self._write(self._block.pop())
            self._write(bare)
        elif self._block:
            self._go_on(line, bare)
        elif RULE.match(bare):
            self._block = [line]
        elif REMARK.match(bare):
            self._held += line
        else:
            self._write(line)

    def _go_on(self, line: bytes, bare: bytes) -> None:
        """A line after a rule: the end of a banner, more of one, or proof that it is none."""
        if len(self._block) > 1 or BANNER.match(bare):
            self._block.append(line)
            if RULE.match(bare):
                self._held, self._block = self._held + b"".join(self._block), []
            return
        self._write(self._block.pop())
        self.take(line)

    def release(self) -> None:
        """Nothing more comes for now: write what waits, or forget it where ssmpi has spoken."""
        whole = self._held + (b"".join(self._block) if len(self._block) > 1 else b"")
        rule = b"".join(self._block) if len(self._block) == 1 else b""  # of something else
        self._held, self._block = b"", []
        if text := (b"" if self.spoken else whole) + rule:
            self._write(text)


class Passed:
    """A thread that passes a launcher's standard error on, line by line, as it comes."""

    def __init__(self, source: IO[bytes], write: Callable[[bytes], None] = aloud) -> None:
        self._source, self._write, self.banners = source, write, Banners(write)
        self._thread = threading.Thread(target=self._run, name="launcher's words", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        part, fd = b"", self._source.fileno()
        while True:
            patience = PART_SECONDS if part else HELD_SECONDS if self.banners.holds else None
            if not select.select([fd], [], [], patience)[0]:
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
        """Wait for the last words of a launcher that has ended; what it left running may keep them open."""
        self._thread.join(ENDING_SECONDS)
