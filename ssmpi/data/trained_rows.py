"""Which of the dealt rows one trainer has trained on, in memory that may outlive it: the one count that says what is
left when processes were killed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ssmpi.data.position import Piece, Position

if TYPE_CHECKING:
    from ssmpi.comm.rank_memory import RankMemory

DEAL, MOST = "deal", "pieces"  # names of notes


class Deal(NamedTuple):
    """A part of the run as it was dealt for the ``number``-th time, after ``examples`` of all trainers."""

    number: int
    examples: int
    position: Position

    @property
    def pieces(self) -> list[Piece]:
        """Those that were begun already, and those that nobody had begun, in their order."""
        return [*(begun.piece for begun in self.position.begun), *self.position.waiting]

    def after(self, done: np.ndarray) -> Deal:
        """The same when so many rows of each piece, int64 (pieces,), have been trained on: what was begun waits."""
        counted = list(zip(self.pieces, done.tolist(), strict=True))
        rests = tuple(Piece(piece.block, piece.start + rows, piece.stop) for piece, rows in counted)
        left = replace(self.position, begun=(), waiting=tuple(rest for rest in rests if rest.rows))
        return Deal(self.number, self.examples + int(done.sum()), left)


class TrainedRows:
    """Of one trainer's ``threads`` threads and at most ``most`` pieces, or as many as were kept. Each piece has one
    thread that counts it, and each thread counts a batch when it is done with it: a kill makes it repeat at most one.

    ``rows`` and ``batches`` int64 (threads,) are what each thread has done in all deals.

    There are two banks, for this deal and the last one: a deal counts once its note is there, and a kill before that
    changes nothing. The ``dealer`` also has ``handed`` out.
    """

    def __init__(self, memory: RankMemory, threads: int, most: int, *, dealer: bool = False) -> None:
        self._memory = memory
        if memory.kept:
            most = memory.noted(MOST)
        memory.note(MOST, most)
        self.handed = Assignments(memory, threads, most) if dealer else None
        self._banks = memory.array("rows done", (2, most), np.int64)
        self.rows, self.batches = (
            memory.array(f"{what} by thread", (threads,), np.int64) for what in ("rows", "batches")
        )
        self._bank = self._banks[0]
        self._of_block: dict[int, list[tuple[int, Piece]]] = {}

    def deal(self, dealt: Deal) -> None:
        """Begin with what is dealt anew."""
        of_block = defaultdict(list)
        for number, piece in enumerate(dealt.pieces):
            of_block[piece.block].append((number, piece))
        self._of_block, self._bank = dict(of_block), self._banks[dealt.number % 2]
        self._bank[:] = 0
        if self.handed:
            self.handed.deal(dealt)
        self._memory.note(DEAL, [dealt.number, dealt.examples, dealt.position.state()])

    def add(self, thread: int, rows: Piece) -> None:
        """A thread has trained on some rows that follow those of the same pieces that it has trained on before."""
        block, start, stop = rows
        self.rows[thread] += stop - start
        self.batches[thread] += 1
        for number, piece in self._of_block[block]:
            if piece.start < stop and start < piece.stop:
                self._bank[number] = min(stop, piece.stop) - piece.start

    def under_way(self, scored: np.ndarray) -> BatchesUnderWay:
        """Of the threads, which have ``scored`` so many rows, int64 (threads,)."""
        return BatchesUnderWay(self.rows, scored)

    def kept(self) -> tuple[Deal, np.ndarray] | None:
        """The last deal of an earlier process, and how many rows of each of its pieces were trained on here."""
        found = self._memory.noted(DEAL)
        if found is None:
            return None
        deal = Deal(found[0], found[1], Position.of_state(found[2]))
        return deal, self._banks[deal.number % 2][: len(deal.pieces)].copy()


class BatchesUnderWay:
    """Batches that were scored and not trained on when a process was killed, at most one a thread; both int64
    (threads,) of its memory.
    """

    def __init__(self, rows: np.ndarray, scored: np.ndarray) -> None:
        self._rows, self._scored = rows, scored

    @property
    def lost(self) -> int:
        """How many come again, as no record has said yet."""
        return int((self._scored != self._rows).sum())

    def reported(self) -> None:
        """They are on record."""
        self._rows[:] = self._scored


class Assignments:
    """On the dealer: which trainer has which piece of a deal, in memory: what it knows of those whose memory is lost.

    A thread that asks for more has done all that it was given before, but for the last piece if it takes batches
    ``ahead``. int32 (2, pieces): 0 for a piece that nobody was given, k + 1 for one that trainer k has, -k - 1 for one
    that it has done.
    """

    def __init__(self, memory: RankMemory, threads: int, most: int) -> None:
        self._threads = threads
        self._banks = memory.array("pieces handed out", (2, most), np.int32)
        self._bank, self._pieces, self._begun = self._banks[0], list[Piece](), 0
        self._has: dict[int, list[int]] = {}  # pieces, by asker

    def deal(self, dealt: Deal) -> None:
        """Begin with what is dealt anew: what was begun is handed out."""
        self._bank, self._pieces, self._begun = self._banks[dealt.number % 2], dealt.pieces, len(dealt.position.begun)
        self._bank[:], self._has = 0, {}
        for number, begun in enumerate(dealt.position.begun):
            self._give(begun.trainer * self._threads + begun.thread, number)

    def asked(self, asker: int, given: int, *, ahead: bool) -> None:
        """A thread, by its number in the job, has asked for more and was ``given`` one of what nobody had begun, if it
        is not negative.
        """
        has = self._has.get(asker, [])
        for _ in has[int(ahead) :]:
            self._done(has.pop(0))
        if given >= 0:
            self._give(asker, self._begun + given)

    def at_rest(self, begun: Sequence[Piece]) -> None:
        """All threads have come to rest: what each has ``begun`` is not done, all else that it was given is."""
        for has in self._has.values():
            for number in has:
                piece = self._pieces[number]
                if not any(overlap(piece, rest) for rest in begun):
                    self._done(number)

    def kept(self, deal: Deal) -> np.ndarray:
        """What an earlier process has handed out of a deal, int32 (pieces,)."""
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
    """How many rows of each piece of a deal a trainer has done for sure, by what the dealer has ``handed`` out, int64
    (pieces,).
    """
    return np.where(handed == -trainer - 1, [piece.rows for piece in deal.pieces], 0).astype(np.int64)


def rows_in_hand(trainer: int, deal: Deal, handed: np.ndarray) -> int:
    """How many rows a trainer may have done besides."""
    return sum(piece.rows for piece, whose in zip(deal.pieces, handed.tolist(), strict=True) if whose == trainer + 1)


def latest(found: Sequence[tuple[Deal, np.ndarray] | None]) -> Deal | None:
    """What is left of the latest deal, from what each trainer has kept; one that has not come to it has done nothing
    of it. None if nothing was dealt yet.
    """
    number = max((deal.number for deal, _ in filter(None, found)), default=0)
    of_it = [(deal, done) for deal, done in filter(None, found) if deal.number == number]
    return of_it[0][0].after(np.sum([done for _, done in of_it], axis=0)) if of_it else None
