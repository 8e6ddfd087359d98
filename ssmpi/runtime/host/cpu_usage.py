"""A rank's CPU time by kind of thread: written by every rank of a training job, plotted by ``report``.

Wall time without CPU time is waiting: for another rank, for a lock, or for a core.
"""

from __future__ import annotations

import contextlib
import json
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ssmpi.runtime.errors import UserError
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import USAGE
from ssmpi.runtime.topology import Role

Moment = tuple[float, float]

_lock = threading.Lock()
_threads: dict[str, dict[str, float]] = {}
_main = threading.local()  # when the main thread began its current phase; one per rank even where ranks are threads


@contextlib.contextmanager
def counted(thread: str) -> Iterator[None]:
    """Count the block, run by this thread, under its kind: ``worker`` for ``worker 3``."""
    began = _now()
    try:
        yield
    finally:
        _count(thread.rstrip("0123456789 "), began)


@contextlib.contextmanager
def recorded(folder: Path, role: Role, index: int) -> Iterator[None]:
    """Count the block as the main thread's and write ``usage/ROLE-INDEX.json``: seconds, and peak memory in bytes.

    A rank that fails writes nothing. A file that cannot be written is reported and changes nothing: how the run ended
    is known by then, and a stop must be reported as one.
    """
    _main.began = _now()
    yield
    _count("main", _main.began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    body = {"role": str(role), "index": index, "peak_memory_bytes": peak, "threads": _threads}
    try:
        (folder / USAGE).mkdir(exist_ok=True)
        atomic_file.write(folder / USAGE / f"{role}-{index}.json", json.dumps(body, indent=1) + "\n")
    except (OSError, UserError) as error:
        log.error(f"error: no CPU times of {role} {index} for 'ssmpi report': {error}")


def set_up() -> None:
    """End the main thread's set-up phase: its time from now on counts as ``main``."""
    if hasattr(_main, "began"):
        _count("set-up", _main.began)
        _main.began = _now()


def _now() -> Moment:
    return time.monotonic(), time.thread_time()


def _count(kind: str, began: Moment) -> None:
    wall, cpu = _now()
    with _lock:
        spent = _threads.setdefault(kind, {"threads": 0, "wall_seconds": 0.0, "cpu_seconds": 0.0})
        spent["threads"] += 1
        spent["wall_seconds"] += wall - began[0]
        spent["cpu_seconds"] += cpu - began[1]
