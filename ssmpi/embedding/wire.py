"""What travels between a trainer's thread and an embedding PS; ``runtime.mpi.service`` has the tags. Payloads are
32-bit words where nothing else is said.

======== ================================================================= =============================================
kind     request                                                           reply
======== ================================================================= =============================================
PULL     see ``pull``: rows, bags of rows, and keys as in FIND             see ``PulledLayout``: the rows, and those of
                                                                           keys, anything where the shared one serves;
                                                                           the weighted sum of each bag, float32; then
                                                                           the ids of the keys, int32, in whole rows
PUSH     see ``push``: gradients of rows and of bags                       none
DRAIN    int64: how many PUSH messages of this trainer there are so far    one byte, once so many have been applied
SAVE     JSON: path, limit in seconds, whether in the background           one byte, once the rows may change again
SAVED    nothing                                                           JSON: bytes and checksum, or what went wrong;
                                                                           empty while it is being written
SAMPLES  int64: how many samples all trainers have done                    JSON: what it has saved by itself since the
                                                                           last one, a list
ATTACH   nothing                                                           how to map the rows, and in further lines the
                                                                           counts of accesses and the maps of keys;
                                                                           empty lines if they are not shared or there
APPLIED  nothing                                                           int64: name of the count of this trainer's
                                                                           pushes, and how many were applied
FIND     int64 (n, 3): key, number among the keyed features, how often     ids int32 (n,)
         it is looked up now; in the order of features
SWEEP    int64: how many samples all trainers have done, while they pause  int64 (keyed features, 7): ``KeyCounts``,
                                                                           once no row is behind its table
======== ================================================================= =============================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ssmpi.embedding.table_decay import OWN

TEXT = 8192  # bytes of a reply that is text, padded with zeros
PULL, PUSH, DRAIN, SAVE, SAVED, ATTACH, APPLIED, SAMPLES, FIND, SWEEP = range(10)
PULL_HEAD, PUSH_HEAD = 4, 5  # words
NO_KEYS = np.empty((0, 3), np.int64)


def text(value: bytes, out: np.ndarray) -> None:
    """Write a reply that is text into ``out`` uint8 (TEXT,), cut to fit."""
    out[:] = 0
    out[: len(value[:TEXT])] = np.frombuffer(value[:TEXT], np.uint8)


def read_text(reply: np.ndarray) -> str:
    """The text of such a reply."""
    return reply.tobytes().rstrip(b"\0").decode(errors="replace")


class PulledBags(NamedTuple):
    """``rows`` int32 (ids,) of the ids of all bags; ``ends`` int32 (bags,) of each bag among them, when read (bags +
    1,) from 0 on; ``weights`` float32 (ids,), or none if all are 1.
    """

    rows: np.ndarray
    ends: np.ndarray
    weights: np.ndarray


class Pull(NamedTuple):
    """Single ``rows`` int32 (n,), ``bags`` of others, and ``keys`` int64 (keys, 3)."""

    rows: np.ndarray
    bags: PulledBags | None
    keys: np.ndarray


def pull(rows: np.ndarray, bags: PulledBags | None = None, keys: np.ndarray = NO_KEYS) -> np.ndarray:
    """The payload that asks for a ``Pull``, int32 words: how many rows, bags, ids of bags, and keys; then keys, rows
    and, of bags, rows, ends and weights.
    """
    counts, parts = [len(rows), 0, 0, len(keys)], [rows]
    if len(keys):
        parts = [keys.reshape(-1).view(np.int32), rows]
    if bags:
        counts[1:3] = len(bags.ends), len(bags.rows)
        parts += [bags.rows, bags.ends, bags.weights.view(np.int32)]
    return np.concatenate([np.array(counts, np.int32), *parts])


def read_pull(payload: np.ndarray) -> Pull:
    """What ``pull`` wrote, without copies but for the ends of bags."""
    words = payload.view(np.int32)
    rows, bags, ids, keys = words[:PULL_HEAD].tolist()
    first = PULL_HEAD + 6 * keys
    asked = words[PULL_HEAD:first].view(np.int64).reshape(keys, 3) if keys else NO_KEYS
    end = first + rows
    return Pull(words[first:end], _pulled_bags(words[end:], bags, ids) if bags else None, asked)


def _pulled_bags(words: np.ndarray, bags: int, ids: int) -> PulledBags:
    """The part of a PULL that is of so many bags with so many ids."""
    return PulledBags(words[:ids], _from_zero(words[ids : ids + bags]), words[ids + bags :].view(np.float32))


class PulledLayout(NamedTuple):
    """The reply to a PULL: so many ``rows`` of ``width`` numbers of ``dtype``, filled up to a whole word, then so many
    ``more`` of float32 or int32.
    """

    rows: int
    more: int
    width: int
    dtype: np.dtype[Any]

    @property
    def _edge(self) -> int:
        return -(-self.rows * self.width * self.dtype.itemsize // 4) * 4

    @property
    def size(self) -> int:
        """Bytes of it."""
        return self._edge + 4 * self.more * self.width

    def split(self, reply: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both of a reply, uint8 (size,): (rows, width), and float32 (more, width)."""
        rows = reply[: self.rows * self.width * self.dtype.itemsize].view(self.dtype)
        return rows.reshape(-1, self.width), reply[self._edge :].view(np.float32).reshape(-1, self.width)


class PushedBags(NamedTuple):
    """``rows`` int32 (u,), unique; ``gradients`` float32 (bags, width) of the bags; ``ends`` int32 (bags,) of each bag
    among the ids of all, when read (bags + 1,) from 0 on; ``places`` int32 (ids,): of each id, its row among ``rows``;
    ``weights`` float32 (ids,), or none if all are 1.
    """

    rows: np.ndarray
    gradients: np.ndarray
    ends: np.ndarray
    places: np.ndarray
    weights: np.ndarray


class Push(NamedTuple):
    """Single ``rows`` int32 (n,), unique, with their ``gradients`` float32 (n, width) and, where accesses are counted,
    how many each has, ``times`` int32 (n,); and ``bags`` of other rows. Rows of 16 bits are rounded by its ``number``;
    tables that decay have a ``clock``, float64 (2,), as ``before`` in ``table_decay.begin_step``.
    """

    factor: float
    rows: np.ndarray
    gradients: np.ndarray
    times: np.ndarray | None
    bags: PushedBags | None
    number: int = 0
    clock: np.ndarray = OWN


def push(
    factor: float, rows: np.ndarray, gradients: np.ndarray, times: np.ndarray | None = None,
    bags: PushedBags | None = None, tail: Sequence[np.ndarray] = (),
) -> np.ndarray:  # fmt: skip
    """The payload that has a ``Push``, float32 words: factor; how many rows, bags, ids of bags, and rows of bags; then
    rows, gradients, times and, of bags, rows, gradients, ends, places and weights; and the ``tail``: if rows are
    rounded by it, the number of the push, int64 (1,), and, if tables decay, the clock.
    """
    head, counts = np.empty(PUSH_HEAD, np.float32), [len(rows), 0, 0, 0]
    parts = [head, rows.view(np.float32), gradients.reshape(-1)]
    if times is not None:
        parts.append(times.view(np.float32))
    if bags:
        counts[1:] = len(bags.ends), len(bags.places), len(bags.rows)
        parts += [bags.rows.view(np.float32), bags.gradients.reshape(-1)]
        parts += [bags.ends.view(np.float32), bags.places.view(np.float32), bags.weights]
    parts += [each.view(np.float32) for each in tail]
    head[0], head[1:].view(np.int32)[:] = factor, counts
    return np.concatenate(parts)


def read_push(payload: np.ndarray, width: int, *, counted: bool, numbered: bool = False, timed: bool = False) -> Push:
    """What ``push`` wrote, without copies but for the ends of bags; with times if accesses are ``counted``,
    ``numbered`` if it has a number, and ``timed`` if it has a clock.
    """
    words, number, clock = payload.view(np.float32), 0, OWN
    if timed:
        words, clock = words[:-4], words[-4:].copy().view(np.float64)
    if numbered:
        words, number = words[:-2], int(words[-2:].copy().view(np.int64)[0])
    rows, bags, ids, unique = words[1:PUSH_HEAD].view(np.int32).tolist()
    first = PUSH_HEAD + rows
    edge = first + rows * width
    end = edge + rows * counted
    times = words[edge:end].view(np.int32) if counted else None
    return Push(
        float(words[0]), words[PUSH_HEAD:first].view(np.int32), words[first:edge].reshape(rows, width), times,
        _pushed_bags(words[end:], (unique, bags, ids), width) if bags else None, number, clock,
    )  # fmt: skip


def _pushed_bags(words: np.ndarray, counts: tuple[int, int, int], width: int) -> PushedBags:
    """The part of a PUSH that is of bags; ``counts`` of rows, bags and ids."""
    unique, bags, ids = counts
    first, last = unique + bags * width, unique + bags * width + bags
    integers = words.view(np.int32)
    return PushedBags(
        integers[:unique], words[unique:first].reshape(bags, width), _from_zero(integers[first:last]),
        integers[last : last + ids], words[last + ids :],
    )  # fmt: skip


def _from_zero(ends: np.ndarray) -> np.ndarray:
    """Where bags begin and the last one ends, int32 (bags + 1,)."""
    return np.concatenate([np.zeros(1, np.int32), ends])


def pulled_bytes(messages: float, rows: float, width: int, size: int = 4) -> float:
    """Payload of so many PULL messages for so many rows in all, and of their replies, in which numbers of rows have
    this ``size``; messages with an odd count of 16 bits have two bytes more.
    """
    return 4 * PULL_HEAD * messages + rows * (4 + size * width)


def pulled_bag_bytes(bags: float, ids: float, width: int, *, weighted: bool = False) -> float:
    """What so many bags with so many ids add to it."""
    return bags * (4 + 4 * width) + ids * (4 + 4 * weighted)


def key_bytes(keys: float) -> float:
    """What so many keys add to pulling their rows, whose ids come back instead of their numbers being sent; ids fill
    whole rows, less than one more a message.
    """
    return 24 * keys


def pushed_bytes(
    messages: float, rows: float, width: int, *, counted: bool = False, numbered: bool = False, timed: bool = False
) -> float:
    """Payload of so many PUSH messages with so many rows in all, with the accesses of each if they are ``counted``,
    ``numbered`` if they have a number, and ``timed`` if they have a clock.
    """
    return (4 * PUSH_HEAD + 8 * numbered + 16 * timed) * messages + rows * (4 + 4 * width + 4 * counted)


def pushed_bag_bytes(bags: float, rows: float, ids: float, width: int, *, weighted: bool = False) -> float:
    """What so many bags, their unique rows and their ids add to it."""
    return rows * 4 + bags * (4 + 4 * width) + ids * (4 + 4 * weighted)
