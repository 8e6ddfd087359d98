"""A server's conversation whose messages pass through something that measures or delays them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ssmpi.bench.harness.stages import ServerEnd
from ssmpi.runtime.mpi.inbox import Inbox
from ssmpi.runtime.mpi.messages import Conversation
from ssmpi.runtime.protocols import MPIRequest
from ssmpi.runtime.traffic import Link


class ServedThrough(Conversation):
    """A server's end, made as a ``Conversation`` is; ``through`` stands between it and the messages."""

    def __init__(self, through: Callable[[ServerEnd], ServerEnd], *made: Any) -> None:
        super().__init__(*made)
        self._through = through(Conversation(*made))

    def next_message(self, inbox: Inbox) -> tuple[int, int, np.ndarray] | None:
        """As ``Conversation``."""
        return self._through.next_message(inbox)

    def isend(self, array: np.ndarray, dest: int, tag: int, link: Link | None = None) -> MPIRequest:
        """As ``Conversation``; servers count nothing."""
        return self._through.isend(array, dest, tag)
