"""TensorBoard's events, by TensorBoard's own writer: that of torch would import torch, which takes seconds."""

from __future__ import annotations

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class EventWriter:
    """An event file in ``folder``. Steps from ``first`` on are repeated: TensorBoard drops those in files of an earlier
    job.
    """

    def __init__(self, folder: Path, first: int) -> None:
        self._file = EventFileWriter(str(folder))
        start = SessionLog(status=SessionLog.START)
        self._file.add_event(Event(wall_time=time.time(), step=first, session_log=start))

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """One point of the curve ``name``; OSError where it cannot be written."""
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        self._file.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()
