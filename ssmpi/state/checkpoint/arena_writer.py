"""Writes an arena into its file of a checkpoint: a copy in the background, so that training continues, or the live rows
at once where memory has no room for a copy.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path

import numpy as np

from ssmpi.embedding.table import Arena
from ssmpi.runtime.files.log import log
from ssmpi.runtime.host.host_memory import free_memory
from ssmpi.runtime.mpi.background import start_background
from ssmpi.runtime.run_options import CheckpointOptions
from ssmpi.state.checkpoint.pending_save import NICENESS, Outcome, written, written_in_background

MOST = 0.8  # of free memory, for copies
SLICE = 1 << 24  # bytes that are paged in between two looks whether a save waits
SOON_SECONDS = 10.0  # when memory is paged in if nobody knows how long a number of examples takes


class RoomWantedError(Exception):
    """A save needs the room at once."""


class CopyRoom:
    """Memory for the copies of an arena, kept from one save to the next. ``wanted`` is set when a save needs it."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []
        self._taken = 0
        self.wanted = threading.Event()

    @property
    def size(self) -> int:
        """Bytes of the last copy: there is memory for another one."""
        return sum(block.nbytes for block in self._blocks)

    def clear(self) -> None:
        """The copies of the last save are not needed any more."""
        self._taken = 0

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The next array. If the last save had a smaller one, a quarter more is set aside: dynamic tables grow."""
        size, k = math.prod(shape) * dtype.itemsize, self._taken
        self._taken += 1
        if k == len(self._blocks):
            self._blocks.append(np.empty(size, np.uint8))
        elif self._blocks[k].nbytes < size:
            self._blocks[k] = np.empty(size + size // 4, np.uint8)
        return self._blocks[k][:size].view(dtype).reshape(shape)

    def prefault(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """As a call, and page the array in; RoomWantedError as soon as the room is wanted."""
        pages = self(shape, dtype).reshape(-1).view(np.uint8)
        for start in range(0, pages.nbytes, SLICE):
            if self.wanted.is_set():
                raise RoomWantedError
            pages[start : start + SLICE] = 0


class ArenaWriter:
    """One save at a time. The copy's memory is reused, and paged in before the first save: that costs 20 times as much
    as the copy itself. ``sharers`` processes on this host make such copies at the same time.
    """

    def __init__(self, sharers: int) -> None:
        self._sharers = sharers
        self._room = CopyRoom()
        self._prefaulting = threading.Lock()
        self._writing: Future[Outcome] | None = None

    def prefault(self, arena: Arena, options: CheckpointOptions) -> ArenaWriter:
        """Page in memory for the copy of static tables, on a low-priority thread, in the middle of the time to the
        first save. How much dynamic ones need is not known, and their rows may be freed meanwhile.
        """
        soon = SOON_SECONDS if options.every_examples else math.inf
        seconds = min(soon, 30 * options.every_minutes or math.inf)
        if options.background and seconds < math.inf and not arena.placement.keyed:
            start_background("prefault", self._prefault, weakref.ref(arena), seconds)
        return self

    def _prefault(self, live: Callable[[], Arena | None], seconds: float) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        time.sleep(seconds)
        if (arena := live()) is None:
            return  # the job has ended
        with self._prefaulting, contextlib.suppress(RoomWantedError):
            if not self._room.size and self._has_room(arena):
                for _, values, _ in arena.datasets():
                    self._room.prefault(values.shape, values.dtype)

    def begin(self, arena: Arena, path: Path, limit_seconds: float, *, background: bool) -> None:
        """Write the rows as they are now; they may change again once this returns. If training waits for the file and
        it is not written within the limit, that counts as a failure.
        """
        assert self._writing is None or self._writing.done(), "a save is begun before the last one has ended"
        if background:
            self._room.wanted.set()
            with self._prefaulting:
                if self._has_room(arena):
                    self._room.clear()
                    copies = list(arena.datasets(self._room))
                    self._writing = start_background("save", written_in_background, path, copies)
                    return
            size = self._size(arena) / 1e9
            log.warning(f"no memory for a copy of {size:.1f} GB: training waits while the rows are written")
        writing = start_background("save", written, path, arena.datasets())
        self._writing = writing if wait([writing], limit_seconds).done else given_up(path, limit_seconds)

    def _size(self, arena: Arena) -> int:
        return arena.used * (arena.options.row_bytes - arena.options.clock_bytes)

    def _has_room(self, arena: Arena) -> bool:
        """Whether a copy fits in that of the last one and in free memory; rows on disk, which use it too, need as much
        besides.
        """
        times, more = 2 if arena.options.settings.storage else 1, self._size(arena) - self._room.size
        return times * max(0, more) * self._sharers <= free_memory() * MOST

    def outcome(self) -> Outcome | None:
        """``file``, ``bytes`` and ``checksum``, or ``error``; None while it is being written."""
        return self._writing.result() if self._writing and self._writing.done() else None


def given_up(path: Path, limit_seconds: float) -> Future[Outcome]:
    """The outcome of a write that took longer than the limit."""
    text = f"{path} is not written after checkpoint.limit_seconds = {limit_seconds:g}: look at its disk"
    future: Future[Outcome] = Future()
    future.set_result({"error": text, "full": False})
    return future
