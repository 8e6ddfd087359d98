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
    changes nothing.
    """

    def __init__(self, memory: RankMemory, threads: int, most: int) -> None:
        self._memory = memory
        if memory.kept:
            most = memory.noted(MOST)
        memory.note(MOST, most)
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
        self._memory.note(DEAL, [dealt.number, dealt.examples, dealt.position.state()])

    def add(self, thread: int, rows: Piece) -> None:
        """A thread has trained on some rows that follow those of the same pieces that it has trained on before."""
        self.rows[thread] += rows.rows
        self.batches[thread] += 1
        for number, piece in self._of_block[rows.block]:
            if piece.start < rows.stop and rows.start < piece.stop:
                self._bank[number] = min(rows.stop, piece.stop) - piece.start

    def kept(self) -> tuple[Deal, np.ndarray] | None:
        """The last deal of an earlier process, and how many rows of each of its pieces were trained on here."""
        found = self._memory.noted(DEAL)
        if found is None:
            return None
        deal = Deal(found[0], found[1], Position.of_state(found[2]))
        return deal, self._banks[deal.number % 2][: len(deal.pieces)].copy()


def latest(found: Sequence[tuple[Deal, np.ndarray] | None]) -> Deal | None:
    """What is left of the latest deal, from what each trainer has kept; one that has not come to it has done nothing
    of it. None if nothing was dealt yet.
    """
    number = max((deal.number for deal, _ in filter(None, found)), default=0)
    of_it = [(deal, done) for deal, done in filter(None, found) if deal.number == number]
    return of_it[0][0].after(np.sum([done for _, done in of_it], axis=0)) if of_it else None
