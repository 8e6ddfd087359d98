"""Writes an arena into its file of a checkpoint: a copy in the background, so that training goes on, or the live rows at
once where memory has no room for a copy.
"""

from __future__ import annotations

import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ssmpi.checkpoint import files
from ssmpi.comm.failure import cause
from ssmpi.embedding.table import Arena
from ssmpi.log import log

NICENESS = 10  # of the writing thread: on a full node it must not take a core from training
LONGEST_ERROR = 1200
CGROUP = Path("/sys/fs/cgroup")


class ArenaSaver:
    """One save at a time. The memory of the copy stays: memory that is new to a process costs more than what is copied."""

    def __init__(self) -> None:
        self._copies: list[np.ndarray] = []
        self._outcome: dict[str, Any] | None = None
        self._writing: threading.Thread | None = None

    def begin(self, arena: Arena, path: Path, *, background: bool) -> None:
        """Write the rows as they are now; they may change again when this returns."""
        if self._writing:
            self._writing.join()
        self._outcome, self._writing = None, None
        needed = arena.weights.nbytes + arena.state.nbytes
        if background and not self._copies and needed > free_memory() * 0.8:
            log.warning(f"no memory for a copy of {needed / 1e9:.1f} GB: training waits while the rows are written")
            background = False
        if not background:
            self._write(path, arena.datasets())
            return
        live = list(arena.datasets())
        self._copies = self._copies or [np.empty_like(values) for _, values, _ in live]
        for copy, (_, values, _) in zip(self._copies, live, strict=True):
            np.copyto(copy, values)
        copies = [(name, copy, place) for copy, (name, _, place) in zip(self._copies, live, strict=True)]
        self._writing = threading.Thread(target=self._write_quietly, args=(path, copies), name="save", daemon=True)
        self._writing.start()

    def outcome(self) -> dict[str, Any] | None:
        """``file``, ``bytes`` and ``checksum``, or ``error``; None while it is being written."""
        return self._outcome

    def _write_quietly(self, path: Path, datasets: Any) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        self._write(path, datasets)

    def _write(self, path: Path, datasets: Any) -> None:
        try:
            self._outcome = asdict(files.write(path, datasets))
        except Exception as error:  # the first trainer knows what to do about it
            self._outcome = {"error": cause(error)[:LONGEST_ERROR]}


def free_memory() -> float:
    """Bytes that this process may still take, of the machine and of its control group; infinite where neither says."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        limit, used = ((CGROUP / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "current"))
        found += [int(limit) - int(used)]
    except (OSError, ValueError):  # no such file here, or "max": no limit
        pass
    return min(found, default=float("inf"))
