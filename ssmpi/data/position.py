"""A run's position in a pass: which rows of which blocks are left. Arithmetic only; a saved position can be resumed
with any number of trainers and threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Piece(NamedTuple):
    """Rows ``start`` to ``stop`` of one block, in the training order of its pass."""

    block: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


Rows = tuple[int, int, int]  # what a ``Piece`` holds, made in a tenth of its time: once in every step


class StartedPiece(NamedTuple):
    """The rest of a piece that one thread of one trainer had started."""

    trainer: int
    thread: int
    piece: Piece


@dataclass(frozen=True)
class Position:
    """A position in part ``part`` of the run, whose blocks have ``block_rows`` rows: the pieces started, and those not
    started yet. Until the part is ``dealt`` all of it is left; ``block_rows`` is 0 until its pass has started.
    """

    part: int
    block_rows: int = 0
    dealt: bool = False
    begun: tuple[StartedPiece, ...] = ()
    waiting: tuple[Piece, ...] = ()

    @property
    def left(self) -> int:
        """Rows of this part that are still to be trained on."""
        return sum(piece.rows for piece in self.waiting) + sum(begun.piece.rows for begun in self.begun)

    @property
    def done(self) -> bool:
        """Whether the whole part has been trained on."""
        return self.dealt and not self.left

    def passes(self, per_pass: int) -> int:
        """How many passes have begun, of ``per_pass`` parts each."""
        return -(-(self.part + self.dealt) // per_pass)

    def next(self, per_pass: int) -> Position:
        """The start of the next part; the parts of a pass share its blocks."""
        return Position(self.part + 1, self.block_rows if (self.part + 1) % per_pass else 0)

    def of(self, trainer: int, thread: int) -> list[Piece]:
        """The pieces that one thread had started, in its order."""
        return [begun.piece for begun in self.begun if begun[:2] == (trainer, thread)]

    def for_others(self, threads: int, batch_size: int) -> Position:
        """The same rows for a job with ``threads`` threads in all: no piece is started, and every thread gets some. If
        there are too few pieces they are split, at multiples of ``batch_size``.
        """
        pieces = [begun.piece for begun in self.begun] + list(self.waiting)
        share = max(1, self.left // (4 * threads))
        most = max(batch_size, share // batch_size * batch_size)
        return replace(self, begun=(), waiting=tuple(cut_up(pieces, most)))

    def state(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "part": self.part,
            "block_rows": self.block_rows,
            "dealt": self.dealt,
            "begun": [[begun.trainer, begun.thread, *begun.piece] for begun in self.begun],
            "waiting": [list(piece) for piece in self.waiting],
        }

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Position:
        """What ``state`` gave."""
        begun = tuple(StartedPiece(trainer, thread, Piece(*piece)) for trainer, thread, *piece in state["begun"])
        waiting = tuple(Piece(*piece) for piece in state["waiting"])
        return cls(state["part"], state["block_rows"], state["dealt"], begun, waiting)


def cut_up(pieces: Iterable[Piece], most: int) -> Iterator[Piece]:
    """The same rows in the same order, in pieces of at most ``most`` rows."""
    for block, start, stop in pieces:
        for first in range(start, stop, most):
            yield Piece(block, first, min(first + most, stop))
