"""Writes an arena into its file of a checkpoint: a copy in the background, so that training continues, or the live rows
at once where memory has no room for a copy.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from pathlib import Path

import numpy as np

from ssmpi.embedding.table import Arena
from ssmpi.runtime.files.log import log
from ssmpi.runtime.host.host_memory import free_memory
from ssmpi.runtime.mpi.background import start_background
from ssmpi.state.checkpoint.pending_save import Outcome, written, written_in_background

MOST = 0.8  # of free memory, for copies


class ArenaWriter:
    """One save at a time. The copy's memory is reused: paging in new memory costs more than the copy itself.
    ``sharers`` processes on this host make such copies at the same time.
    """

    def __init__(self, sharers: int) -> None:
        self._sharers = sharers
        self._copies: list[np.ndarray] = []
        self._writing: Future[Outcome] | None = None

    def begin(self, arena: Arena, path: Path, limit_seconds: float, *, background: bool) -> None:
        """Write the rows as they are now; they may change again once this returns. If training waits for the file and
        it is not written within the limit, that counts as a failure.
        """
        assert self._writing is None or self._writing.done(), "a save is begun before the last one has ended"
        needed = arena.used * arena.options.row_bytes
        if background and not self._copies and needed * self._sharers > free_memory() * MOST:
            log.warning(f"no memory for a copy of {needed / 1e9:.1f} GB: training waits while the rows are written")
            background = False
        if not background:
            writing = start_background("save", written, path, arena.datasets())
            self._writing = writing if wait([writing], limit_seconds).done else given_up(path, limit_seconds)
            return
        live = list(arena.datasets())
        if [copy.shape for copy in self._copies] != [values.shape for _, values, _ in live]:
            self._copies = [np.empty_like(values) for _, values, _ in live]
        for copy, (_, values, _) in zip(self._copies, live, strict=True):
            np.copyto(copy, values)
        copies = [(name, copy, place) for copy, (name, _, place) in zip(self._copies, live, strict=True)]
        self._writing = start_background("save", written_in_background, path, copies)

    def outcome(self) -> Outcome | None:
        """``file``, ``bytes`` and ``checksum``, or ``error``; None while it is being written."""
        return self._writing.result() if self._writing and self._writing.done() else None


def given_up(path: Path, limit_seconds: float) -> Future[Outcome]:
    """The outcome of a write that took longer than the limit."""
    text = f"{path} is not written after checkpoint.limit_seconds = {limit_seconds:g}: look at its disk"
    future: Future[Outcome] = Future()
    future.set_result({"error": text, "full": False})
    return future
