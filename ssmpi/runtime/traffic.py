"""Counts what one process has sent, and fetched from servers: payload bytes and messages by class of link.

A message between a trainer and a server is counted by the trainer, in whichever direction it goes; one between two
trainers by its sender; an all-reduce of n trainers as 2 (n - 1) / n of its vector on each of them, what a ring sends,
and as one message. So the sum over all trainers is the total traffic. Rows, rounds and steps of a group in shared
memory cause none: such rows are counted as ``rows_in_place``. ``entries_group`` counts the numbers that edges of groups
carry, ``entries`` what codecs were given, ``entries_sent`` what they sent. MPI and network headers are not counted.
"""

from __future__ import annotations

from enum import IntEnum
from threading import get_ident

import numpy as np


class Link(IntEnum):
    """A class of link, as the results name it."""

    EMBEDDING_PULL = 0
    EMBEDDING_PUSH = 1
    CENTER_PUSH = 2
    CENTER_PULL = 3
    TRAINERS = 4
    CONTROL = 5
    GROUP = 6


LINKS = tuple(link.name.lower() for link in Link)
BYTES = tuple(f"bytes_{name}" for name in LINKS)
MESSAGES = tuple(f"messages_{name}" for name in LINKS)
ROWS, GROUP_ENTRIES, ENTRIES, SENT = "rows_in_place", "entries_group", "entries", "entries_sent"
COUNTED = (*BYTES, *MESSAGES, ROWS, GROUP_ENTRIES, ENTRIES, SENT)  # the order of ``Traffic.totals``
_FIRST_MESSAGES, _ROWS, _GROUP_ENTRIES, _ENTRIES, _SENT = map(
    COUNTED.index, (MESSAGES[0], ROWS, GROUP_ENTRIES, ENTRIES, SENT)
)


class Traffic:
    """Counts while ``on``: during training, not during evaluation or saving, like the seconds of training. Each thread
    has its own counters, so no lock is needed and nothing is lost.
    """

    def __init__(self, *, on: bool = False) -> None:
        self.on = on
        self._of_threads: dict[int, list[float]] = {}

    def add(self, link: Link, size: float) -> None:
        """Count one message of ``size`` bytes."""
        if self.on:
            counts = self._mine()
            counts[link] += size
            counts[_FIRST_MESSAGES + link] += 1

    def add_rows(self, rows: int) -> None:
        """Count rows that were read or updated in place."""
        if self.on:  # in every step, so without a call
            (self._of_threads.get(get_ident()) or self._mine())[_ROWS] += rows

    def add_group_entries(self, entries: int) -> None:
        """Count numbers that an edge of a group carries."""
        if self.on:
            self._mine()[_GROUP_ENTRIES] += entries

    def add_entries(self, entries: int, sent: int) -> None:
        """Count the entries of a vector, and how many of them a codec sent."""
        if self.on:
            counts = self._mine()
            counts[_ENTRIES] += entries
            counts[_SENT] += sent

    def totals(self) -> np.ndarray:
        """float64 (COUNTED,): sums over all threads so far."""
        return np.sum([np.zeros(len(COUNTED)), *map(np.array, list(self._of_threads.values()))], axis=0)

    def by_name(self) -> dict[str, float]:
        """The same by name."""
        return dict(zip(COUNTED, self.totals().tolist(), strict=True))

    def _mine(self) -> list[float]:
        counts = self._of_threads.get(get_ident())
        if counts is None:
            counts = self._of_threads[get_ident()] = [0] * len(COUNTED)
        return counts


class Meter:
    """The traffic of one conversation: the default classes of what is ``sent`` (its ``link``) and ``received``; None
    if the other end counts.
    """

    def __init__(self, traffic: Traffic, sent: Link, received: Link | None = None) -> None:
        self.traffic, self.link, self._received = traffic, sent, received

    def sent(self, size: int, link: Link | None = None) -> None:
        """A message leaves."""
        self.traffic.add(self.link if link is None else link, size)

    def received(self, size: int, link: Link | None = None) -> None:
        """An answer of this size is expected."""
        if self._received is not None:
            self.traffic.add(self._received if link is None else link, size)

    def reduced(self, size: int, ranks: int) -> None:
        """A vector is summed over ``ranks`` ranks."""
        if ranks > 1:
            self.traffic.add(self.link, 2 * (ranks - 1) * size / ranks)

    def spread(self, size: int, rank: int, ranks: int) -> None:
        """The first rank broadcasts its vector."""
        if rank == 0 and ranks > 1:
            self.traffic.add(self.link, (ranks - 1) * size)


def meter(traffic: Traffic, conversation: str) -> Meter:
    """The meter of a conversation by its name. Of those with servers the trainers count both directions."""
    links = {
        "embedding": (Link.CONTROL, Link.CONTROL),  # pulls and pushes say that they are
        "center": (Link.CENTER_PUSH, Link.CENTER_PULL),
        "trainers": (Link.TRAINERS, None),
        "replicas": (Link.TRAINERS, None),
        "group": (Link.GROUP, None),
        "control": (Link.CONTROL, None),
    }
    return Meter(traffic, *links[conversation])
