"""One line format for every rank: time, role, index, message. Only the first trainer talks below warnings, and it
alone may draw a progress bar.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TextIO

log = logging.getLogger("ssmpi")
_terminal: TextIO | None = None


def draw_on(path: Path | None) -> None:
    """Draw the progress bar on the terminal ``path``: mpirun passes on whole lines only, so a bar needs its own way."""
    global _terminal
    _terminal = None if path is None else path.open("w", encoding="utf-8")


def terminal() -> TextIO | None:
    """Where to draw a progress bar, None for a batch log."""
    return _terminal or (sys.stderr if sys.stderr.isatty() else None)


def configure(who: str, *, talkative: bool) -> None:
    """Send this rank's messages to standard error under the name ``who`` (``trainer 0``)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {who} | %(message)s", datefmt="%H:%M:%S"))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO if talkative else logging.WARNING)
    log.propagate = False
