"""The batches of one worker thread, which may be cut between any two of them and resumed later, by this process or
another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ssmpi.data.batch import Batch
from ssmpi.data.position import Piece
from ssmpi.data.reader import DataOptions, SplitReader, batches_in, shuffled


class Stream:
    """``begun`` is what was begun and is not trained on yet. Whoever takes batches ``ahead`` of training has the last
    one given out still to train on when it asks for the next.
    """

    def __init__(self, options: DataOptions, seed: int, *, ahead: bool) -> None:
        self._options, self._seed, self._ahead = options, seed, ahead
        self.begun: list[Piece] = []
        self._was_cut = False

    def was_cut(self) -> bool:
        """Whether the batches ended because they were cut, not because there are no more."""
        return self._was_cut

    def batches(
        self, reader: SplitReader, a_pass: int, next_piece: Callable[[], Piece | None], cut: Callable[[], bool]
    ) -> Iterator[Batch]:
        """The batches of what was begun, then of the pieces that ``next_piece`` gives, until it has none or
        ``cut()``.
        """
        begun, last, room = self.begun, None, reader.room()
        self.begun, self._was_cut = [], False
        while not cut():
            piece = begun.pop(0) if begun else next_piece()
            if piece is None:
                if cut():
                    break
                return
            start = piece.start
            for batch in self._batches(reader, a_pass, piece, room):
                if cut():
                    break
                last = Piece(piece.block, start, start + len(batch))
                start += len(batch)
                yield batch
            if start < piece.stop:
                begun.insert(0, piece._replace(start=start))
        self._was_cut = True
        self.begun = joined([last, *begun] if self._ahead and last else begun)

    def _batches(self, reader: SplitReader, a_pass: int, piece: Piece, room: Batch) -> Iterator[Batch]:
        rows = reader.blocks[piece.block].rows
        order = shuffled(self._seed, 2, a_pass, piece.block, size=rows) if self._options.shuffle else np.arange(rows)
        block = reader.read(reader.blocks[piece.block], room)
        return batches_in(order[piece.start : piece.stop], block, self._options.batch_size)


def joined(pieces: list[Piece]) -> list[Piece]:
    """The same rows, neighbours in one piece."""
    found: list[Piece] = []
    for piece in pieces:
        if found and (found[-1].block, found[-1].stop) == (piece.block, piece.start):
            found[-1] = found[-1]._replace(stop=piece.stop)
        else:
            found.append(piece)
    return found
