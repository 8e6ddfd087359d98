"""What a rank has logged of itself (``runtime.host.vitals``); how the ranks of a live job are asked for it now. One of
this host that does not answer prints its stacks without the GIL.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.files.run_files import LOGS, REQUEST
from ssmpi.runtime.host.vitals import FRAMES, MARK, call_in_words

HERE, ELSEWHERE = 12.0, 75.0  # seconds for an answer: NFS may show another host a new file after a minute
RECENT = 600.0  # seconds that shares of time are of
TAIL = 1 << 16  # bytes of a log that are read
STOPPED = "T"  # as Linux calls it
Stacks = list[list[str]]  # of the threads of a rank: the names of some, and their innermost calls


@dataclass(frozen=True)
class RankLog:
    """What a rank has logged of itself: ``lines`` since its last process started, oldest first; how many lines were
    ``damaged``; the ``last`` line of any other kind.
    """

    name: str
    path: Path
    lines: Sequence[dict[str, Any]] = ()
    damaged: int = 0
    last: str = "no log"

    @classmethod
    def read(cls, run: Path, name: str) -> RankLog:
        """The end of a rank's log; without lines if there is none, or if it is of an earlier version."""
        path = run / LOGS / f"{name.replace(' ', '-')}.log"
        if not path.exists():
            return cls(name, path)
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            texts = file.read().decode(errors="replace").splitlines()
        bodies = [body for text in texts if (body := text.partition(f" | {MARK}")[2])]
        found = [line for line in map(vitals_of, bodies) if line]
        last = next((text for text in reversed(texts) if " | " in text and f" | {MARK}" not in text), "")
        own = [line for line in found if line["pid"] == found[-1]["pid"]]
        return cls(name, path, own, len(bodies) - len(found), last)

    @property
    def sign(self) -> dict[str, Any]:
        """Its last line."""
        return self.lines[-1]

    @property
    def host(self) -> str:
        """Where it runs."""
        return str(self.sign["host"])

    @property
    def where(self) -> str:
        """Its name, host and process."""
        return f"{self.name} (host {self.host}, process {self.sign['pid']})" if self.lines else self.name

    @property
    def stacks(self) -> Stacks:
        """Where its threads were, workers first."""
        return sorted(self.sign["stacks"], key=lambda stack: "worker" not in stack[0]) if self.lines else []

    def spent(self, kind: str) -> Counter[str]:
        """Seconds and looks of a kind of thread in its recent lines, by name."""
        found: Counter[str] = Counter()
        for line in self.lines:
            if line["at"] > self.sign["at"] - RECENT:
                found.update(line["threads"].get(kind, {}))
        return found

    @property
    def state(self) -> str:
        """The letter that Linux gives to the state of the rank's process; empty if it cannot be seen from here. The
        process that has the log open is this rank.
        """
        process = Path(f"/proc/{self.sign['pid']}")
        with contextlib.suppress(OSError):
            if self.host == socket.gethostname() and any(map(self.path.samefile, (process / "fd").iterdir())):
                return (process / "stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2][:1]
        return ""

    def stacks_by_signal(self) -> Stacks:
        """Those that SIGQUIT makes it print, at most two seconds later."""
        before = self.path.stat().st_size
        os.kill(self.sign["pid"], signal.SIGQUIT)
        time.sleep(2.0)
        text = self.path.read_bytes()[before:].decode(errors="replace")
        found = [re.findall(r'File "(.*)", line (\d+) in (\S+)', block) for block in text.split("hread 0x")[1:]]
        return [["thread", *(call_in_words(name, file, line) for file, line, name in of[:FRAMES])] for of in found]


def vitals_of(text: str) -> dict[str, Any] | None:
    """The line that a rank has logged; None if it is damaged."""
    with contextlib.suppress(ValueError):
        match found := parse_json(text):
            case {"at": float(), "began": float(), "pid": int(), "host": str(), "memory": int(), "peak": int(),
                  "threads": dict(threads), "stacks": list(stacks)}:  # fmt: skip
                whole = all(isinstance(spent, dict) for spent in threads.values())
                return found if whole and all(isinstance(stack, list) for stack in stacks) else None
    return None


def ask(run: Path, names: Sequence[str], notes: list[str]) -> dict[str, Stacks]:
    """Ask the ranks for a line each and wait until all that run have written one; those that have not, with their
    stacks where these can be had.
    """
    path, word = run / LOGS / REQUEST, secrets.token_hex(8)
    before = {rank.name: rank for rank in (RankLog.read(run, name) for name in names) if rank.lines}
    states = {name: rank.state for name, rank in before.items()}
    able = {name for name, state in states.items() if state != STOPPED}
    reached, began = {socket.gethostname()}, time.monotonic()  # hosts that can see the request
    try:
        path.write_text(word, encoding="ascii")
        while able and time.monotonic() - began < (HERE if {before[k].host for k in able} <= reached else ELSEWHERE):
            time.sleep(0.25)
            heard = {k for k in able if RankLog.read(run, k).lines[-1:] not in ([], before[k].lines[-1:])}
            able, reached = able - heard, reached | {before[k].host for k in heard}
        with contextlib.suppress(FileNotFoundError):  # somebody else has asked, too
            if path.read_text(encoding="ascii") == word:
                path.unlink()
    except OSError as error:
        notes.append(f"the ranks cannot be asked where their threads are: {path}: {error.strerror}")
        return {}
    return {
        name: before[name].stacks_by_signal() if name in able and state else []
        for name, state in states.items() if name in able or state == STOPPED
    }  # fmt: skip
