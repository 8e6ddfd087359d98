"""One line format for every rank: time, host, role, index, message. Only the first trainer prints messages below
warnings, and only it may draw a progress bar.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TextIO

from ssmpi.runtime.files.run_files import LOGS
from ssmpi.runtime.files.write_behind import WriteBehind

ENDS = "the job ends: "
FIRST_REMINDER, NEXT_REMINDER = 10.0, 30.0  # seconds until it is said that something is still running
WORTH_SAYING = 1.0  # seconds
CLOSING_SECONDS = 2.0  # for a disk that does not answer, when a process ends
SHAPE = 80, 24  # columns and rows where a terminal does not report them

log = logging.getLogger("ssmpi")


class RankFile(logging.Handler):
    """Appends to a rank's own file; a full or hung disk neither ends the process nor blocks it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._file = path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self.behind, self._refused = WriteBehind(path.name), False
        self._cut_off = False  # whether the disk took only a part of the last line

    def emit(self, record: logging.LogRecord) -> None:
        """One more line."""
        try:
            text = f"{self.format(record)}\n".encode(errors="backslashreplace")
            self.behind.do(partial(self._append, text))
        except RuntimeError:  # no thread can be started: the rank ends with one message
            raise
        except Exception:  # as every handler of logging's
            self.handleError(record)

    def take_stacks(self) -> None:
        """SIGQUIT prints the stacks of all threads to this file from now on, also where a thread hangs in C code; so do
        signals that end the rank, such as SIGBUS if a disk that holds its rows fails.
        """
        faulthandler.register(signal.SIGQUIT, self._file)
        faulthandler.enable(self._file)

    def close(self) -> None:
        """No more lines."""
        super().close()
        if self._file >= 0 and self.behind.settle(CLOSING_SECONDS):
            faulthandler.register(signal.SIGQUIT)  # to standard error again
            faulthandler.enable()
            os.close(self._file)
        self._file = -1  # logging closes handlers again when a process ends

    def _append(self, text: bytes) -> None:
        text = b"\n" + text if self._cut_off else text
        try:
            while text:
                text = text[os.write(self._file, text) :]
                self._cut_off = bool(text)
            self._refused = False
        except OSError as error:
            if not self._refused:
                self._refused = True
                log.error(f"error: {self._path} lacks lines from here on: {error.strerror}")


_terminal: TextIO | None = None


def set_terminal(path: Path | None) -> None:
    """Draw the progress bar on the terminal ``path``: mpirun forwards whole lines only, so a bar bypasses it."""
    global _terminal
    _terminal = None if path is None else path.open("w", encoding="utf-8")


def terminal() -> TextIO | None:
    """Where to draw a progress bar, None for a batch log."""
    return _terminal or (sys.stderr if sys.stderr.isatty() else None)


def shape(terminal: TextIO) -> tuple[int, int]:
    """Columns and rows of a terminal; SHAPE where it reports 0 because its size was never set."""
    try:
        found = os.get_terminal_size(terminal.fileno())
    except (OSError, ValueError):
        return SHAPE
    return found.columns or SHAPE[0], found.lines or SHAPE[1]


def above(write: Callable[[str], None], text: str) -> None:
    """Log an ordinary line, in this rank's file too; ``write`` prints it above a progress bar."""
    line = log.makeRecord(log.name, logging.INFO, "", 0, text, (), None)
    for handler in log.handlers:
        if isinstance(handler, RankFile):
            handler.handle(line)
        elif line.levelno >= handler.level:
            write(handler.format(line))


@contextlib.contextmanager
def during(what: str, progress: Callable[[], str] = str) -> Iterator[None]:
    """Log what the block does, a reminder after 10 s and every 30 s with its ``progress``, and how long it took if that
    was a second or more.
    """
    began, done = time.monotonic(), threading.Event()

    def remind() -> None:
        pause = FIRST_REMINDER
        while not done.wait(pause):
            log.info(f"{what}: {time.monotonic() - began:.0f} s so far{progress()}")
            pause = NEXT_REMINDER

    log.info(f"{what} ...")
    reminder = threading.Thread(target=remind, name="during", daemon=True)
    reminder.start()
    try:
        yield
    finally:
        done.set()
        reminder.join()
    if (seconds := time.monotonic() - began) >= WORTH_SAYING:
        log.info(f"{what}: took {seconds:.1f} s")


def configure(who: str, *, verbose: bool) -> None:
    """Send this rank's messages to standard error under the name ``who`` (``trainer 0``) and its host's."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_format(who))
    handler.setLevel(logging.INFO if verbose else logging.WARNING)
    log.handlers[:] = [handler]
    log.setLevel(logging.DEBUG)  # which only a rank's own file has
    log.propagate = False


def log_to_file(path: Path, who: str) -> None:
    """Append all messages of this rank, also those that it does not print, and the stacks that SIGQUIT asks for, to a
    file of its own.
    """
    path.parent.mkdir(exist_ok=True)
    handler = RankFile(path)
    handler.take_stacks()
    handler.setFormatter(_format(who, precise=True))
    log.addHandler(handler)


def record(text: str) -> None:
    """Write why the job ends to this rank's own file only: ``runtime.mpi.failure`` decides whether to print it. Returns
    once it is written: the caller has a limit.
    """
    line = log.makeRecord(log.name, logging.ERROR, "", 0, ENDS + text, (), None)
    for handler in log.handlers:
        if isinstance(handler, RankFile):
            handler.handle(line)
            handler.behind.settle()


def log_and_flush(text: str) -> None:
    """Log a line, and return once this rank's own file has it: the caller has a limit."""
    log.info(text)
    for handler in log.handlers:
        if isinstance(handler, RankFile):
            handler.behind.settle()


def lengths(run: Path) -> dict[int, int]:
    """Bytes of the ranks' files so far, by file: for ``end_recorded``."""
    return {found.st_ino: found.st_size for found in (path.stat() for path in (run / LOGS).glob("*.log"))}


def end_recorded(run: Path, since: dict[int, int]) -> bool:
    """Whether any rank has logged why the job ends since its file had the given length."""
    for path in (run / LOGS).glob("*.log"):
        with path.open("rb") as file:
            file.seek(since.get(path.stat().st_ino, 0))
            if f"| {ENDS}".encode() in file.read():
                return True
    return False


def last_end(run: Path, since: datetime | None) -> str:
    """Why the last job of a run ended, as logged last by any rank; empty if none has logged it ``since`` then."""
    found, least = [], f"{since.astimezone():%Y-%m-%d %H:%M:%S,%f}" if since else ""
    for path in (run / LOGS).glob("*.log"):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            when, _, text = line.partition(f"| {ENDS}")
            if text and when > least:
                found.append((when, text))
    return max(found, default=("", ""))[1]


def _format(who: str, *, precise: bool = False) -> logging.Formatter:
    """Times to the second for people; with date and milliseconds for comparing the files of several ranks."""
    return logging.Formatter(
        f"%(asctime)s {socket.gethostname()} {who} | %(message)s", datefmt=None if precise else "%H:%M:%S"
    )
