"""The assigned rows that a trainer has trained on, in memory that may outlive its process: the only count that decides
which rows are left after a kill.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ssmpi.data.position import Piece, Position, Rows

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.rank_memory import RankMemory


class Deal(NamedTuple):
    """The pieces of a part of the run as dealt; the ``number``-th deal of the run, after ``examples`` of all
    trainers.
    """

    number: int
    examples: int
    position: Position

    @property
    def pieces(self) -> list[Piece]:
        """The pieces already started, then those not started, in order."""
        return [*(begun.piece for begun in self.position.begun), *self.position.waiting]

    def after(self, done: np.ndarray) -> Deal:
        """The deal that remains once ``done`` rows of each piece, int64 (pieces,), have been trained on; started pieces
        are not assigned to a thread.
        """
        counted = list(zip(self.pieces, done.tolist(), strict=True))
        rests = tuple(Piece(piece.block, piece.start + rows, piece.stop) for piece, rows in counted)
        left = replace(self.position, begun=(), waiting=tuple(rest for rest in rests if rest.rows))
        return Deal(self.number, self.examples + int(done.sum()), left)


class TrainedRows:
    """Counts for one trainer's ``threads`` threads and at most ``most`` pieces, or as many as memory holds already.
    Only one thread counts each piece, and it counts a batch when it is done with it, so a kill makes each thread repeat
    at most one batch. ``rows`` and ``batches`` int64 (threads,) are each thread's totals over all deals.

    There are two banks, for this deal and the previous one: a deal is valid once its note is written, and a kill before
    that changes nothing. The ``dealer`` also records assignments (``handed``).

    Counting goes through ``data``: NumPy scalars hold the GIL for 15 us where the model's step has emptied the caches,
    Python's for one.
    """

    def __init__(self, memory: RankMemory, threads: int, most: int, *, dealer: bool = False) -> None:
        self._memory = memory
        if memory.kept:
            most = memory.noted["pieces"]
        memory.note(pieces=most)
        self.handed = Assignments(memory, threads, most) if dealer else None
        self._banks = memory.array("rows done", (2, most), np.int64)
        self.rows, self.batches = (
            memory.array(f"{what} by thread", (threads,), np.int64) for what in ("rows", "batches")
        )
        self._rows, self._batches, self._bank = self.rows.data, self.batches.data, self._banks[0].data
        self._of_block: dict[int, list[tuple[int, int, int]]] = {}

    def deal(self, dealt: Deal) -> None:
        """Start counting a new deal."""
        of_block = defaultdict(list)
        for number, piece in enumerate(dealt.pieces):
            of_block[piece.block].append((number, piece.start, piece.stop))
        bank = self._banks[dealt.number % 2]
        bank[:] = 0
        self._of_block, self._bank = dict(of_block), bank.data
        if self.handed:
            self.handed.deal(dealt)
        self._memory.note(deal=[dealt.number, dealt.examples, dealt.position.state()])

    def add(self, thread: int, rows: Rows) -> None:
        """A thread has trained on the next rows of its pieces. A kill in here may report a batch that is not repeated,
        but never leave one out that is.
        """
        block, start, stop = rows
        for number, first, end in self._of_block[block]:
            if first < stop and start < end:
                self._bank[number] = min(stop, end) - first
        self._rows[thread] += stop - start
        self._batches[thread] += 1

    def in_flight(self, scored: np.ndarray) -> InFlightBatches:
        """Batches in flight, given the rows that each thread has ``scored``, int64 (threads,)."""
        return InFlightBatches(self.rows, scored)

    def kept(self) -> tuple[Deal, np.ndarray] | None:
        """The last deal of an earlier process, and how many rows of each of its pieces this trainer has trained on."""
        found = self._memory.noted.get("deal")
        if found is None:
            return None
        deal = Deal(found[0], found[1], Position.of_state(found[2]))
        return deal, self._banks[deal.number % 2][: len(deal.pieces)].copy()


class InFlightBatches:
    """Batches scored but not trained on when a process was killed, at most one per thread; both arrays int64 (threads,)
    in its memory.
    """

    def __init__(self, rows: np.ndarray, scored: np.ndarray) -> None:
        self._rows, self._scored = rows, scored

    @property
    def lost(self) -> int:
        """How many will be repeated and are not reported yet."""
        return int((self._scored != self._rows).sum())

    def reported(self) -> None:
        """Mark them as reported."""
        self._rows[:] = self._scored


class Assignments:
    """On the dealer: which trainer has which piece of a deal, for trainers whose own memory is lost. A thread that
    requests a piece has finished all earlier ones, except the last if it prefetches (``ahead``). int32 (2, pieces): 0
    for a piece not assigned, k + 1 for one assigned to trainer k, -k - 1 for one that it has finished.
    """

    def __init__(self, memory: RankMemory, threads: int, most: int) -> None:
        self._threads = threads
        self._banks = memory.array("pieces handed out", (2, most), np.int32)
        self._bank, self._pieces, self._begun = self._banks[0], list[Piece](), 0
        self._has: dict[int, list[int]] = {}  # pieces, by asker

    def deal(self, dealt: Deal) -> None:
        """Start recording a new deal, whose started pieces are assigned already."""
        self._bank, self._pieces, self._begun = self._banks[dealt.number % 2], dealt.pieces, len(dealt.position.begun)
        self._bank[:], self._has = 0, {}
        for number, begun in enumerate(dealt.position.begun):
            self._give(begun.trainer * self._threads + begun.thread, number)

    def asked(self, asker: int, given: int, *, ahead: bool) -> None:
        """A thread, by its number in the job, has requested a piece and was ``given`` this one of those not started;
        none if negative.
        """
        has = self._has.get(asker, [])
        for _ in has[int(ahead) :]:
            self._done(has.pop(0))
        if given >= 0:
            self._give(asker, self._begun + given)

    def quiesced(self, begun: Sequence[Piece]) -> None:
        """All threads have paused: what each has ``begun`` is unfinished, every other piece assigned to it is
        finished.
        """
        for has in self._has.values():
            for number in has:
                piece = self._pieces[number]
                if not any(overlap(piece, rest) for rest in begun):
                    self._done(number)

    def kept(self, deal: Deal) -> np.ndarray:
        """The assignments of a deal that an earlier process recorded, int32 (pieces,)."""
        return self._banks[deal.number % 2][: len(deal.pieces)].copy()

    def _give(self, asker: int, number: int) -> None:
        self._has.setdefault(asker, []).append(number)
        self._bank[number] = asker // self._threads + 1

    def _done(self, number: int) -> None:
        self._bank[number] = -abs(self._bank[number])


def overlap(one: Piece, other: Piece) -> bool:
    """Whether two pieces have rows in common."""
    return one.block == other.block and one.start < other.stop and other.start < one.stop


def done_by(trainer: int, deal: Deal, handed: np.ndarray) -> np.ndarray:
    """How many rows of each piece a trainer has certainly trained on, according to the dealer's assignments, int64
    (pieces,).
    """
    return np.where(handed == -trainer - 1, [piece.rows for piece in deal.pieces], 0).astype(np.int64)


def rows_in_flight(trainer: int, deal: Deal, handed: np.ndarray) -> int:
    """How many more rows a trainer may have trained on."""
    return sum(piece.rows for piece, whose in zip(deal.pieces, handed.tolist(), strict=True) if whose == trainer + 1)


def latest(found: Sequence[tuple[Deal, np.ndarray] | None]) -> Deal | None:
    """What is left of the latest deal, from every trainer's memory; a trainer that has not reached it has done nothing
    of it. None if nothing was dealt yet.
    """
    number = max((deal.number for deal, _ in filter(None, found)), default=0)
    of_it = [(deal, done) for deal, done in filter(None, found) if deal.number == number]
    return of_it[0][0].after(np.sum([done for _, done in of_it], axis=0)) if of_it else None
