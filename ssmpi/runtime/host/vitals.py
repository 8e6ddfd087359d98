"""What a rank does, for ``ssmpi doctor RUN``. A thread looks every other second where the threads that work are, and
writes a line into this rank's own log once a minute, or at once if ``doctor`` asks for it by a file in the run folder.

A look costs some 30 us for each of these threads. It needs the GIL, but neither MPI nor the other threads: where they
hang, it says so. No other thread waits for this one, because the run's disk may hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import LOGS, REQUEST

MARK = "vitals: "  # how such a line begins
TICK_SECONDS, LONGEST_PAUSE = 2.0, 60.0
SUSPENDED = 10.0  # seconds between two looks after which they do not count: the whole process was stopped
FRAMES = 5  # of a stack
KINDS = ("main", "worker", "helper", "shadow", "mover")
OUTSIDE = ("/failure.py", "/commands.py", "/cli/__init__.py", "/__main__.py")  # begin every stack

COMPUTES, READS, DEALT, PULLS, PUSHES, ROUNDS, WAITS = (
    "computes",
    "reads",
    "dealt",
    "pulls",
    "pushes",
    "rounds",
    "waits",
)
STATES = {  # a function on a stack to what the thread does there; the first of them that is there decides
    "after_step": ROUNDS,
    "next_block": DEALT,
    "batches": READS,
    "arrive": PULLS,
    "push": PUSHES,
}
RESTS = "_rest_for"  # the shadow thread, between two rounds


def calls(frame: FrameType | None) -> list[tuple[str, str, int]]:
    """Function, file and line of every call of a stack, innermost first."""
    found = []
    while frame:
        found.append((frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return found


def state_of(stack: list[tuple[str, str, int]]) -> str:
    """What a thread with this stack does. It waits if it tests and sleeps in turns, or sleeps in a lock."""
    functions = {function for function, _, _ in stack}
    waits = stack[0][1].endswith("/threading.py") or any(file.endswith("/waiting.py") for _, file, _ in stack)
    if RESTS in functions:
        return WAITS
    if waits and any("/ssmpi/sync/" in file for _, file, _ in stack):
        return ROUNDS
    state = next((state for function, state in STATES.items() if function in functions), WAITS if waits else COMPUTES)
    return COMPUTES if state in (PULLS, PUSHES) and not waits else state


class Vitals:
    """The lines of one rank of a ``run``."""

    def __init__(self, run: Path) -> None:
        self._request, self._answered = run / LOGS / REQUEST, ""
        self._began, self._started = time.monotonic(), time.time()
        self._looked = self._due = self._began
        self._times: dict[int, dict[str, float]] = {}  # of each thread, by its number
        self._spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._stacks: dict[str, list[tuple[str, str, int]]] = {}  # by the name of the thread

    def watch(self, ended: threading.Event) -> None:
        """The body of the thread."""
        while not ended.wait(TICK_SECONDS):
            self.look()
            if self.asked() or time.monotonic() >= self._due:
                log.debug(MARK + json.dumps(self.line()))

    def look(self) -> None:
        """Count where each thread is and what it has used since the last look."""
        frames, now = sys._current_frames(), time.monotonic()
        times, seconds = dict[int, dict[str, float]](), now - self._looked
        self._stacks, self._looked = {}, now
        for thread in threading.enumerate():
            kind = "main" if thread is threading.main_thread() else thread.name.rstrip("0123456789 ")
            number, stack = thread.native_id, calls(frames.get(thread.ident or 0))
            if kind not in KINDS or number is None or not stack:
                continue
            self._stacks[kind if kind == "main" else thread.name] = stack
            times[number] = processor_times(number)
            if number in self._times and seconds < SUSPENDED:
                spent, before = self._spent[kind], self._times[number]
                spent[state_of(stack)] += 1
                spent["seconds"] += seconds
                for name, value in times[number].items():
                    spent[name] += value - before.get(name, value)
        self._times = times

    def line(self) -> dict[str, Any]:
        """What to log: since the last line, and of now."""
        now, alike = time.monotonic(), defaultdict[tuple[str, ...], list[str]](list)
        for name, stack in self._stacks.items():
            alike[shown(stack)].append(name)
        found = {
            "at": round(time.time(), 1), "began": round(self._started, 1), "host": socket.gethostname(),
            "pid": os.getpid(), "memory": resident_bytes(),
            "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "threads": {kind: {k: round(v, 2) for k, v in spent.items()} for kind, spent in self._spent.items()},
            "stacks": [[", ".join(names), *words] for words, names in alike.items()],
        }  # fmt: skip
        self._spent.clear()
        self._due = now + min(LONGEST_PAUSE, now - self._began)
        return found

    def asked(self) -> bool:
        """Whether there is a request in the run folder since the last call."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            before, self._answered = self._answered, self._request.read_text(encoding="ascii")
            return before != self._answered
        return False


def shown(stack: list[tuple[str, str, int]]) -> tuple[str, ...]:
    """The innermost call in words, then the innermost ones of ssmpi, without those that begin every thread."""
    own = [call for call in stack[1:] if "/ssmpi/" in call[1] and not call[1].endswith(OUTSIDE)]
    return tuple(call_in_words(*call) for call in [stack[0], *own][:FRAMES])


def call_in_words(function: str, file: str, line: int | str) -> str:
    """``nap (waiting.py:55)``."""
    return f"{function} ({Path(file).name}:{line})"


def processor_times(thread: int) -> dict[str, float]:
    """Seconds that a thread of this process has spent on a core, ``cpu``, and waiting for one, ``queue``; nothing of a
    thread that has ended, or where the system does not count them.
    """
    with contextlib.suppress(OSError):
        cpu, queue, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii").split()
        return {"cpu": int(cpu) / 1e9, "queue": int(queue) / 1e9}
    return {}


def resident_bytes() -> int:
    """The memory that this process occupies, mapped files included."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def recorded(run: Path) -> Iterator[None]:
    """Look after this rank while the block runs."""
    ended = threading.Event()
    threading.Thread(target=Vitals(run).watch, args=(ended,), name="vitals", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
