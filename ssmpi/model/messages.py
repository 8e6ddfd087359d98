"""The instructions that send values to other members of the group, and their gradients back. Compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ssmpi.model.program import (
    ADD_A,
    BACK,
    BY_A,
    DETAIL,
    FLAGS,
    HALF,
    INPUTS,
    KIND,
    OUTPUTS,
    RECEIVE,
    SEND,
    SEND_KEPT,
    THERE,
)
from ssmpi.model.sparse_messages import post_kept, take_back, take_kept
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.mpi.mailbox import DONE, post, take

NUMBER, CODE = range(2)


@dataclass(frozen=True)
class Channel:
    """The mailboxes of one lane, as they are numbered in ``MemberProgram.mailboxes``: ``addresses`` int64, 0 where this
    member neither sends nor reads; how long to wait for a message, in ns; ``error(number, code)`` is what to raise for
    a code other than DONE. ``failed`` int64 (2,): the last mailbox used, and its code. After a failure nothing is sent
    or awaited any more: the step runs to its end, and ``check`` raises.
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
def send(mail: Mail, number: int, values: np.ndarray, count: int, half: bool) -> None:
    """``post`` to the mailbox of that ``number``."""
    if mail.failed[CODE] == DONE:
        mail.failed[NUMBER] = number
        mail.failed[CODE] = post(mail.addresses[number], values, count, half, mail.limit)


@njit(cache=True, nogil=True)
def receive(mail: Mail, number: int, values: np.ndarray, count: int, half: bool, add: bool) -> None:
    """``take`` from the mailbox of that ``number``."""
    if mail.failed[CODE] == DONE:
        mail.failed[NUMBER] = number
        mail.failed[CODE] = take(mail.addresses[number], values, count, half, add, mail.limit)


@njit(cache=True, nogil=True)
def send_kept(
    mail: Mail, number: int, values: np.ndarray, places: np.ndarray, shape: tuple[int, int, int], half: bool,
    there: bool,
) -> None:  # fmt: skip
    """``post_kept`` to the mailbox of that ``number``."""
    if mail.failed[CODE] == DONE:
        mail.failed[NUMBER] = number
        box = mail.addresses[number]
        mail.failed[CODE] = post_kept(box, values, places, shape, half, there, mail.limit)


@njit(cache=True, nogil=True)
def receive_kept(
    mail: Mail, number: int, values: np.ndarray, places: np.ndarray, shape: tuple[int, int, int], half: bool
) -> None:  # fmt: skip
    """``take_kept`` from the mailbox of that ``number``."""
    if mail.failed[CODE] == DONE:
        mail.failed[NUMBER] = number
        mail.failed[CODE] = take_kept(mail.addresses[number], values, places, shape, half, mail.limit)


@njit(cache=True, nogil=True)
def receive_back(
    mail: Mail, number: int, values: np.ndarray, places: np.ndarray, shape: tuple[int, int, int], half: bool, add: bool
) -> None:  # fmt: skip
    """``take_back`` from the mailbox of that ``number``: at other places the gradient matters to nobody."""
    if mail.failed[CODE] == DONE:
        mail.failed[NUMBER] = number
        mail.failed[CODE] = take_back(mail.addresses[number], values, places, shape, half, add, mail.limit)


@njit(cache=True, nogil=True, inline="always")
def forward(mail: Mail, row: np.ndarray, n: int, x: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    """Execute one instruction ``row`` on ``n`` examples, from its input ``x`` or to its output; all are flat."""
    kind, k, m, half = row[KIND], row[INPUTS], row[OUTPUTS], row[FLAGS] & HALF != 0
    if kind == SEND:
        send(mail, row[THERE], x, n * k, half)
    elif kind == RECEIVE:
        receive(mail, row[THERE], out, n * m, half, False)
    elif kind == SEND_KEPT:
        send_kept(mail, row[THERE], x, _places(values, n, row[DETAIL], m), (n, k, m), half, True)
    else:
        receive_kept(mail, row[THERE], out, _places(values, n, row[DETAIL], k), (n, m, k), half)


@njit(cache=True, nogil=True, inline="always")
def backward(mail: Mail, row: np.ndarray, n: int, values: np.ndarray, by_x: np.ndarray, by_out: np.ndarray) -> None:
    """The gradient of what was sent, or of what was received."""
    kind, k, m, half = row[KIND], row[INPUTS], row[OUTPUTS], row[FLAGS] & HALF != 0
    add = row[FLAGS] & ADD_A != 0
    if row[FLAGS] & BY_A:
        if kind == SEND:
            receive(mail, row[BACK], by_x, n * k, half, add)
        elif kind == RECEIVE:
            send(mail, row[BACK], by_out, n * m, half)
        elif kind == SEND_KEPT:
            receive_back(mail, row[BACK], by_x, _places(values, n, row[DETAIL], m), (n, k, m), half, add)
        else:
            send_kept(mail, row[BACK], by_out, _places(values, n, row[DETAIL], k), (n, m, k), half, False)


@njit(cache=True, nogil=True, inline="always")
def _places(values: np.ndarray, n: int, place: int, kept: int) -> np.ndarray:
    """int32 (n * kept,): the places of the values that were kept."""
    return values[n * place : n * (place + kept)].view(np.int32)
