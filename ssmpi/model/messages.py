"""The instructions that send values to other members of the group, and their gradients back. Compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numba import njit

from ssmpi.comm.mailbox import DONE, post, take
from ssmpi.model.program import ADD_A, BACK, BY_A, DETAIL, FLAGS, HALF, INPUTS, KIND, OUTPUTS, SEND, THERE

NUMBER, CODE = range(2)


@dataclass(frozen=True)
class Channel:
    """The mailboxes of one lane, as they are numbered in ``Part.mailboxes``: ``addresses`` int64, 0 where this member
    neither sends nor reads; how long to wait for a message, in ns; ``error(number, code)`` is what to raise for a code
    other than DONE. ``failed`` int64 (2,): the last mailbox used, and its code. After a failure nothing is sent or
    awaited any more: the step runs to its end, and ``check`` raises.
    """

    addresses: np.ndarray
    limit: int
    error: Callable[[int, int], Exception]
    failed: np.ndarray = field(default_factory=lambda: np.zeros(2, np.int64))

    def check(self) -> None:
        """Raise if a message has failed."""
        number, code = self.failed.tolist()
        if code != DONE:
            raise self.error(number, code)


NOBODY = Channel(np.empty(0, np.int64), 0, lambda number, code: AssertionError("a network as a whole sends nothing"))


class Mail(NamedTuple):
    """A ``Channel`` in compiled code."""

    addresses: np.ndarray
    failed: np.ndarray
    limit: int


@njit(cache=True, nogil=True)
def send(mail: Mail, number: int, values: np.ndarray, rows: int, width: int, across: int, half: bool) -> None:
    """``post`` to the mailbox of that ``number``."""
    if mail.failed[CODE] == DONE:
        mail.failed[NUMBER] = number
        mail.failed[CODE] = post(mail.addresses[number], values, rows, width, across, half, mail.limit)


@njit(cache=True, nogil=True)
def receive(
    mail: Mail, number: int, values: np.ndarray, rows: int, width: int, across: int, half: bool, add: bool
) -> None:  # fmt: skip
    """``take`` from the mailbox of that ``number``."""
    if mail.failed[CODE] == DONE:
        mail.failed[NUMBER] = number
        mail.failed[CODE] = take(mail.addresses[number], values, rows, width, across, half, add, mail.limit)


@njit(cache=True, nogil=True, inline="always")
def forward(mail: Mail, row: np.ndarray, n: int, x: np.ndarray, out: np.ndarray) -> None:
    """Execute one instruction ``row`` on ``n`` examples, from its input ``x`` or to its output; both are flat."""
    k, m, half = row[INPUTS], row[OUTPUTS], row[FLAGS] & HALF != 0
    if row[KIND] == SEND:
        send(mail, row[THERE], x, 1, n * k, n * k, half)
    else:
        receive(mail, row[THERE], out[row[DETAIL] :], n, k, m, half, False)


@njit(cache=True, nogil=True, inline="always")
def backward(mail: Mail, row: np.ndarray, n: int, by_x: np.ndarray, by_out: np.ndarray) -> None:
    """The gradient of what was sent, or of what was received."""
    k, m, half = row[INPUTS], row[OUTPUTS], row[FLAGS] & HALF != 0
    if row[FLAGS] & BY_A:
        if row[KIND] == SEND:
            receive(mail, row[BACK], by_x, 1, n * k, n * k, half, row[FLAGS] & ADD_A != 0)
        else:
            send(mail, row[BACK], by_out[row[DETAIL] :], n, k, m, half)
