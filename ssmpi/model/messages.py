"""The instructions that send values to other members of the group, and their gradients back. Compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ssmpi.model.program import ADD_A, BACK, BY_A, DETAIL, FLAGS, HALF, INPUTS, OUT, OUTPUTS, THERE, A
from ssmpi.model.sparse_messages import post_kept, take_back, take_kept
from ssmpi.model.step_args import ADDRESSES, EXAMPLES, FAILED, LIMIT, by_value, value
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import array_at
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


@njit(cache=True, nogil=True)
def send_forward(args: np.ndarray, row: np.ndarray) -> None:
    """SEND: a value."""
    send(mail_of(args), row[THERE], value(args, row[A]), args[EXAMPLES] * row[INPUTS], row[FLAGS] & HALF != 0)


@njit(cache=True, nogil=True)
def send_backward(args: np.ndarray, row: np.ndarray) -> None:
    """The gradient of what was sent."""
    if row[FLAGS] & BY_A:
        size, half, add = args[EXAMPLES] * row[INPUTS], row[FLAGS] & HALF != 0, row[FLAGS] & ADD_A != 0
        receive(mail_of(args), row[BACK], by_value(args, row[A]), size, half, add)


@njit(cache=True, nogil=True)
def receive_forward(args: np.ndarray, row: np.ndarray) -> None:
    """RECEIVE: a value."""
    size, half = args[EXAMPLES] * row[OUTPUTS], row[FLAGS] & HALF != 0
    receive(mail_of(args), row[THERE], value(args, row[OUT]), size, half, False)


@njit(cache=True, nogil=True)
def receive_backward(args: np.ndarray, row: np.ndarray) -> None:
    """The gradient of what was received."""
    if row[FLAGS] & BY_A:
        size, half = args[EXAMPLES] * row[OUTPUTS], row[FLAGS] & HALF != 0
        send(mail_of(args), row[BACK], by_value(args, row[OUT]), size, half)


@njit(cache=True, nogil=True)
def send_kept_forward(args: np.ndarray, row: np.ndarray) -> None:
    """SEND_KEPT: what a ``TopK`` has kept of a value."""
    shape, half, places = (args[EXAMPLES], row[INPUTS], row[OUTPUTS]), row[FLAGS] & HALF != 0, _places(args, row)
    send_kept(mail_of(args), row[THERE], value(args, row[A]), places, shape, half, True)


@njit(cache=True, nogil=True)
def send_kept_backward(args: np.ndarray, row: np.ndarray) -> None:
    """The gradient of what was sent."""
    if row[FLAGS] & BY_A:
        shape, half, add = (args[EXAMPLES], row[INPUTS], row[OUTPUTS]), row[FLAGS] & HALF != 0, row[FLAGS] & ADD_A != 0
        receive_back(mail_of(args), row[BACK], by_value(args, row[A]), _places(args, row), shape, half, add)


@njit(cache=True, nogil=True)
def receive_kept_forward(args: np.ndarray, row: np.ndarray) -> None:
    """RECEIVE_KEPT: what a ``TopK`` has kept of a value."""
    shape, half = (args[EXAMPLES], row[OUTPUTS], row[INPUTS]), row[FLAGS] & HALF != 0
    receive_kept(mail_of(args), row[THERE], value(args, row[OUT]), _places(args, row), shape, half)


@njit(cache=True, nogil=True)
def receive_kept_backward(args: np.ndarray, row: np.ndarray) -> None:
    """The gradient of what was received."""
    if row[FLAGS] & BY_A:
        shape, half, places = (args[EXAMPLES], row[OUTPUTS], row[INPUTS]), row[FLAGS] & HALF != 0, _places(args, row)
        send_kept(mail_of(args), row[BACK], by_value(args, row[OUT]), places, shape, half, False)


@njit(cache=True, nogil=True)
def _places(args: np.ndarray, row: np.ndarray) -> np.ndarray:
    """int32: the places of the values that were kept."""
    return value(args, row[DETAIL]).view(np.int32)


@njit(cache=True, nogil=True)
def mail_of(args: np.ndarray) -> Mail:
    """The mailboxes in a step's arguments."""
    return Mail(array_at(args, ADDRESSES, np.int64), array_at(args, FAILED, np.int64), args[LIMIT])
