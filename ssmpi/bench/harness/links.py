"""Emulates a server's network link at its end of the conversation: a token bucket for each direction.

Only jobs of ``ssmpi bench cluster`` use it. A server's loop is unchanged: its conversation delivers a message when its
last byte would have arrived, and starts to send a reply when its last byte would have left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ssmpi.bench.harness.windows import clock

if TYPE_CHECKING:
    from ssmpi.comm.inbox import Inbox
    from ssmpi.comm.messages import Conversation


class Bucket:
    """Transmits messages in order at ``rate`` bytes per second; idle time is not saved up, as on a link. Times are
    seconds of any one clock.
    """

    def __init__(self, rate: float) -> None:
        self._rate, self._free = rate, 0.0

    def passed(self, size: int, now: float) -> float:
        """The time at which a message of ``size`` bytes that arrives ``now`` has passed."""
        self._free = max(self._free, now) + size / self._rate
        return self._free


class Sent(Protocol):
    """The part of an MPI request that is used here."""

    def Test(self) -> bool:  # noqa: N802 - mpi4py's name
        """Whether it is complete."""


class DelayedReply:
    """Acts as the MPI request of a reply that is sent when the link has let it pass, at ``due``."""

    def __init__(self, due: float, send: Callable[[], Sent], let_go: Callable[[], None]) -> None:
        self.due, self._send, self._let_go = due, send, let_go
        self._request: Sent | None = None

    def start(self) -> None:
        """Send it by MPI: the link has let it pass."""
        self._request = self._send()

    def Test(self) -> bool:  # noqa: N802 - mpi4py's name
        """Whether the reply has been sent."""
        self._let_go()
        return self._request is not None and bool(self._request.Test())


class LimitedLink:
    """Replaces the ``next_message`` and ``isend`` of a server's conversation."""

    def __init__(self, conversation: Conversation, rate: float, now: Callable[[], float] = clock) -> None:
        self._next_message, self._isend, self._now = conversation.next_message, conversation.isend, now
        self._inwards, self._outwards = Bucket(rate), Bucket(rate)
        self._coming: deque[tuple[float, int, int, np.ndarray]] = deque()
        self._going: deque[DelayedReply] = deque()

    def next_message(self, inbox: Inbox) -> tuple[int, int, np.ndarray] | None:
        """The next message that the link has let pass."""
        self._let_go()
        while (found := self._next_message(inbox)) is not None:
            source, tag, payload = found
            self._coming.append((self._inwards.passed(payload.size, self._now()), source, tag, payload.copy()))
        if not self._coming or self._coming[0][0] > self._now():
            return None
        return self._coming.popleft()[1:]

    def isend(self, array: np.ndarray, dest: int, tag: int) -> DelayedReply:
        """Send when the link has let it pass; the array must not change until the request is complete."""
        due = self._outwards.passed(array.nbytes, self._now())
        reply = DelayedReply(due, lambda: self._isend(array, dest, tag), self._let_go)
        self._going.append(reply)
        return reply

    def _let_go(self) -> None:
        while self._going and self._going[0].due <= self._now():
            self._going.popleft().start()


def limit(conversation: Conversation, rate: float) -> None:
    """Limit this server's end of a conversation to ``rate`` bytes per second in each direction."""
    link = LimitedLink(conversation, rate)
    conversation.next_message = link.next_message  # type: ignore[method-assign]
    conversation.isend = link.isend  # type: ignore[assignment, method-assign]  # servers count nothing
