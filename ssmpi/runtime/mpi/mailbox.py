"""Mailboxes: compiled code of one rank hands arrays to that of another, in memory that both map.

A mailbox has one sender, one reader, and room for one message. The sender writes the payload, then the number of the
message; the reader copies the payload, then notes that number as taken. Each side waits for the other's number before
it touches the payload, so a message is never torn, whatever the protocol above. A protocol in which a sender has had
an answer to its last message before it sends the next one never waits in ``post``.

Waits are futexes, in compiled code without the GIL: a waiting thread takes no core and never the interpreter. ``mover``
carries messages between ranks that share no memory.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ssmpi.runtime.compiled.atomic import SECOND, load, now, sleep_while, store, wake
from ssmpi.runtime.compiled.bfloat16 import add_bf16, from_bf16, to_bf16
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import numbers_at
from ssmpi.runtime.mpi.shared_memory import Memory, PrivateMemory, SharedMemory, attach
from ssmpi.runtime.mpi.waiting import WaitOptions, late

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation

# Words of a mailbox, by offset: the last message's number and whether its sender sleeps, on a line that the sender
# writes; the last number taken and whether the reader sleeps, on one that the reader writes; the size of the payload in
# bytes, int64; the payload.
SENT, SENDER_SLEEPS, TAKEN, READER_SLEEPS, SIZE, PAYLOAD = 0, 4, 64, 68, 184, 192
LINE = 64
DONE, LATE, ANOTHER_SIZE = range(3)  # codes
SPINS = 200  # looks at a word before going to sleep: a few microseconds
NAP = SECOND  # for waits without a limit

FLOAT32, BF16 = 4, 2  # bytes of a number in a payload


def room(size: int) -> int:
    """Bytes that a mailbox for payloads of up to ``size`` bytes takes."""
    return PAYLOAD + -(-size // LINE) * LINE


@njit(cache=True, nogil=True)
def post(box: int, values: np.ndarray, count: int, half: bool, limit: int) -> int:
    """Send the first ``count`` float32 numbers of the flat ``values``, rounded to bfloat16 if ``half``. ``box`` is the
    mailbox's address. Returns DONE, or LATE if the last message was not taken within ``limit`` nanoseconds; 0 is no
    limit.
    """
    if not may_post(box, limit):
        return LATE
    if half:
        to_bf16(values.view(np.uint32)[:count], numbers_at(box + PAYLOAD, count, np.uint16))
    else:
        _copy(values[:count], numbers_at(box + PAYLOAD, count, np.float32), False)
    seal(box, count * (BF16 if half else FLOAT32))
    return DONE


@njit(cache=True, nogil=True)
def take(box: int, values: np.ndarray, count: int, half: bool, add: bool, limit: int) -> int:
    """Wait for the next message and write it to ``values`` as ``post`` reads it, or ``add`` it. Returns DONE; LATE if
    there was none within ``limit`` nanoseconds, where 0 is no limit; ANOTHER_SIZE if sender and reader disagree.
    """
    code = may_take(box, count * (BF16 if half else FLOAT32), limit)
    if code != DONE:
        return code
    out = values[:count]
    if not half:
        _copy(numbers_at(box + PAYLOAD, count, np.float32), out, add)
    elif add:
        add_bf16(numbers_at(box + PAYLOAD, count, np.uint16), out)
    else:
        from_bf16(numbers_at(box + PAYLOAD, count, np.uint16), out.view(np.uint32))
    mark_empty(box)
    return DONE


@njit(cache=True, nogil=True)
def may_post(box: int, limit: int) -> bool:
    """Wait until the payload may be written, which ``seal`` then sends; False if that takes longer than ``limit``."""
    number: np.uint32 = load(box + SENT)  # type: ignore[call-arg]  # numba gives the first
    return _equals(box + TAKEN, box + SENDER_SLEEPS, number, limit)


@njit(cache=True, nogil=True)
def seal(box: int, size: int) -> None:
    """A payload of so many bytes was written."""
    numbers_at(box + SIZE, 1, np.int64)[0] = size
    mark_full(box)


@njit(cache=True, nogil=True)
def may_take(box: int, size: int, limit: int) -> int:
    """Wait until a payload of so many bytes may be read, until ``mark_empty``; returns a code as ``take``."""
    number = np.uint32(load(box + TAKEN) + 1)  # type: ignore[call-arg]
    if not _equals(box + SENT, box + READER_SLEEPS, number, limit):
        return LATE
    return DONE if numbers_at(box + SIZE, 1, np.int64)[0] == size else ANOTHER_SIZE


@njit(cache=True, nogil=True)
def _equals(word: int, sleeps: int, value: int, limit: int) -> bool:
    """Wait until the uint32 at ``word`` is ``value``, noting at ``sleeps`` that this thread sleeps; False if it is not
    within ``limit`` nanoseconds.
    """
    for _ in range(SPINS):
        if load(word) == value:  # type: ignore[call-arg]
            return True
    until = now() + limit
    store(sleeps, np.uint32(1))  # type: ignore[call-arg]
    while True:
        found = load(word)  # after the store: the other side sees that, or this its number
        left = until - now() if limit else NAP
        if found == value or left <= 0:
            break
        sleep_while(word, found, left)
    store(sleeps, np.uint32(0))
    return found == value


@njit(cache=True, nogil=True)
def is_full(box: int) -> bool:
    """Whether its last message was not taken yet."""
    full: bool = load(box + SENT) != load(box + TAKEN)  # type: ignore[call-arg]
    return full


@njit(cache=True, nogil=True)
def find_full(boxes: np.ndarray, full: np.ndarray) -> None:
    """full (n,) = ``is_full`` of boxes int64 (n,)."""
    for i in range(boxes.shape[0]):
        full[i] = is_full(boxes[i])


@njit(cache=True, nogil=True)
def mark_full(box: int) -> None:
    """A message was written to the mailbox, size and payload."""
    store(box + SENT, np.uint32(load(box + SENT) + 1))  # type: ignore[call-arg]
    if load(box + READER_SLEEPS):
        wake(box + SENT)


@njit(cache=True, nogil=True)
def mark_empty(box: int) -> None:
    """Its message was read."""
    store(box + TAKEN, np.uint32(load(box + TAKEN) + 1))  # type: ignore[call-arg]
    if load(box + SENDER_SLEEPS):
        wake(box + TAKEN)


@njit(cache=True, nogil=True, inline="always")
def _copy(values: np.ndarray, out: np.ndarray, add: bool) -> None:
    """out = values, both float32 (n,), or out += values."""
    if add:
        for i in range(values.shape[0]):
            out[i] += values[i]
    else:
        for i in range(values.shape[0]):
            out[i] = values[i]


class Box(NamedTuple):
    """A mailbox's sender and reader, by rank in the group's conversation, the most bytes of a payload, and the entries
    in so many bytes, which results count.
    """

    source: int
    reader: int
    size: int
    entries: int = 0

    def entries_in(self, size: int) -> int:
        """The entries in a payload of that size."""
        return size * self.entries // max(1, self.size)


class Mailboxes:
    """The mailboxes of a ``group`` of ranks; each of them creates it with the same ``boxes``, on its main thread. They
    lie in their readers' memory. ``addresses`` int64 (boxes,) are those of the mailboxes in which this rank sends or
    reads, 0 of others. Without ``mapped``, or where a sender cannot map its reader's memory, it sends from a mailbox of
    its own: those in ``outgoing``, and in ``incoming`` at their readers, are for a ``Mover``.
    """

    def __init__(
        self, group: Conversation, boxes: Iterable[tuple[int, ...]], waiting: WaitOptions, *, mapped: bool = True
    ) -> None:
        self.group, self.boxes, self.waiting = group, [Box(*each) for each in boxes], waiting
        self.limit = int(waiting.time_limit_seconds * SECOND)  # ns, for ``post`` and ``take``
        self.addresses = np.zeros(len(self.boxes), np.int64)
        memory: Memory = SharedMemory() if mapped and hasattr(os, "memfd_create") else PrivateMemory()
        self._sizes, self._payloads = dict[int, np.ndarray](), dict[int, np.ndarray]()  # of those in its memory
        mine, sent = ([n for n, box in enumerate(self.boxes) if box[end] == group.rank] for end in (1, 0))
        self._memory = [self._lay_out(memory, mine)]
        addresses = group.gather(memory.address)
        reached = {reader for reader in {self.boxes[n].reader for n in sent} if self._map(reader, addresses[reader])}
        self.outgoing = [n for n in sent if self.boxes[n].reader not in reached]
        self._memory.append(self._lay_out(PrivateMemory(), self.outgoing))
        self.incoming = [n for far in group.gather(self.outgoing) for n in far if self.boxes[n].reader == group.rank]

    def error(self, number: int, code: int) -> Exception:
        """What to raise where ``post`` or ``take`` of a mailbox has returned ``code``, other than DONE."""
        box = self.boxes[number]
        other = self.group.names[box.reader if box.source == self.group.rank else box.source]
        if code == LATE:
            return late(self.waiting, other)
        return AssertionError(f"mailbox {number}: {other} and this rank disagree on the size of a message")

    def message(self, number: int) -> np.ndarray:
        """The payload in a mailbox of this rank's memory, uint8."""
        return self._payloads[number][: int(self._sizes[number][0])]

    def room(self, number: int, size: int) -> np.ndarray:
        """Room there for a payload of that size, which the mailbox notes, uint8."""
        self._sizes[number][0] = size
        return self._payloads[number][:size]

    def _lay_out(self, memory: Memory, numbers: Sequence[int]) -> np.ndarray:
        """Place these mailboxes in memory of this rank, empty."""
        places = self._places(numbers)
        found = memory.allocate(places[-1])
        found[:] = 0
        self.addresses[numbers] = found.ctypes.data + np.array(places[:-1], np.int64)
        for number, at in zip(numbers, places, strict=False):
            self._sizes[number] = found[at + SIZE : at + PAYLOAD].view(np.int64)
            self._payloads[number] = found[at + PAYLOAD :][: self.boxes[number].size]
        return found

    def _map(self, reader: int, address: bytes) -> bool:
        """Find the mailboxes of another rank to which this one sends; False if its memory cannot be mapped."""
        theirs = [n for n, box in enumerate(self.boxes) if box.reader == reader]
        places = self._places(theirs)
        try:
            found = attach(address, places[-1])
        except OSError:
            return False
        for number, place in zip(theirs, places, strict=False):
            if self.boxes[number].source == self.group.rank:
                self.addresses[number] = found.ctypes.data + place
        self._memory.append(found)
        return True

    def _places(self, numbers: Sequence[int]) -> list[int]:
        """The offset of each mailbox in its reader's memory, and the size of that."""
        return [0, *itertools.accumulate(room(self.boxes[number].size) for number in numbers)]
