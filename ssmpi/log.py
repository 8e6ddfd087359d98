"""One line format for every rank: time, role, index, message. Only the first trainer talks below warnings."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("ssmpi")


def configure(who: str, *, talkative: bool) -> None:
    """Send this rank's messages to standard error under the name ``who`` (``trainer 0``)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {who} | %(message)s", datefmt="%H:%M:%S"))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO if talkative else logging.WARNING)
    log.propagate = False
