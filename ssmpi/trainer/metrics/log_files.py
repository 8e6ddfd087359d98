"""The files that a run's metrics go to: an append-only text file of whole lines, on a disk that may be full or hang for
a while, because logging must neither end nor hold up the run; and TensorBoard's events.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

from ssmpi.runtime.files.atomic_file import naming
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.write_behind import WriteBehind
from ssmpi.runtime.mpi.failure import cause

CLOSING_SECONDS = 10.0  # for a disk that does not answer, at the end


class JsonlFile:
    """Appends to ``path``, after truncating it to ``known`` bytes. Lines that cannot be written are kept in memory and
    retried. ``size`` is the bytes so far, including lines kept in memory; ``behind`` writes them.
    """

    def __init__(self, path: Path, known: int) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self.size = min(known, os.fstat(self._file.fileno()).st_size)
        with naming(path):
            self._file.truncate(self.size)
        self._waiting = b""
        self._refused = False
        self.behind = WriteBehind(path.name)

    def write(self, line: str) -> None:
        """One more line."""
        text = f"{line}\n".encode()
        self.size += len(text)
        self.behind.do(partial(self._append, text))

    def _append(self, text: bytes) -> None:
        self._waiting += text
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
        """No more lines; those in memory are tried once more."""
        self.behind.do(partial(self._append, b""))
        if not self.behind.settle(CLOSING_SECONDS):
            log.error(f"error: {self._path} lacks its last lines: its disk has not answered for {CLOSING_SECONDS:g} s")
            return  # closing it would wait for the disk, too
        if lost := self._waiting.count(b"\n"):
            log.error(f"error: {self._path} lacks its last {lost} lines: the disk did not take them")
        self._file.close()


class EventWriter:
    """TensorBoard's events in a file in ``folder``, by TensorBoard's own writer: that of torch would import torch, for
    seconds. Steps from ``first`` on are repeated: TensorBoard drops those in files of an earlier job. ImportError
    without TensorBoard.
    """

    def __init__(self, folder: Path, first: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary, self._file = Event, Summary, EventFileWriter(str(folder))
        start = SessionLog(status=SessionLog.START)
        self._file.add_event(Event(wall_time=time.time(), step=first, session_log=start))

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """One point of the curve ``name``; OSError where it cannot be written."""
        summary = self._summary(value=[self._summary.Value(tag=name, simple_value=value)])
        self._file.add_event(self._event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()


def event_writer(folder: Path, examples: int) -> EventWriter | None:
    """A writer of TensorBoard's events, or None, with a message, where TensorBoard is not installed."""
    try:
        return EventWriter(folder, examples)
    except ImportError:
        log.info("no TensorBoard events: pip install 'ssmpi[tensorboard]' to have them")
        return None
