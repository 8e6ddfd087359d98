"""The batches of one worker thread. It can be interrupted between any two of them and resumed later, by this process or
another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ssmpi.data.batch import Batch
from ssmpi.data.position import Piece, Rows
from ssmpi.data.reader import BatchCutter, DataOptions, SplitReader, shuffled


class Stream:
    """``begun`` holds the pieces started and not finished. With ``ahead``, the consumer prefetches: when it asks for a
    batch it has not trained on the previous one yet. ``trained(rows)`` is called for every batch as soon as it is known
    to be done.
    """

    def __init__(
        self, options: DataOptions, seed: int, trained: Callable[[Rows], None] = lambda rows: None, *, ahead: bool
    ) -> None:
        self._options, self._seed, self._trained, self._ahead = options, seed, trained, ahead
        self.begun: list[Piece] = []
        self._given: list[Rows] = []  # and perhaps not trained on yet
        self._was_cut = False

    def was_cut(self) -> bool:
        """Whether the batches ended because the stream was interrupted, not because there are no more."""
        return self._was_cut

    def batches(
        self, reader: SplitReader, a_pass: int, next_piece: Callable[[], Piece | None], cut: Callable[[], bool]
    ) -> Iterator[Batch]:
        """The batches of the pieces already started, then of those that ``next_piece`` gives, until it has none or
        ``cut()``. Each batch overwrites the one before the last.
        """
        begun, last, buffer, ahead = self.begun, None, reader.buffer(), int(self._ahead)
        cutter = BatchCutter(buffer, self._options.batch_size)
        self.begun, self._was_cut = [], False
        self._given = given = []
        while not cut():
            piece = begun.pop(0) if begun else next_piece()
            if piece is None:
                if cut():
                    break
                return
            number, start, end = piece
            for batch in self._batches(reader, a_pass, piece, buffer, cutter):
                if cut():
                    break
                last = number, start, start + len(batch.labels)
                start = last[2]
                given.append(last)
                yield batch
                if len(given) > ahead:
                    self._trained(given.pop(0))
            if start < end:
                begun.insert(0, piece._replace(start=start))
        self._was_cut, self._given = True, []
        self.begun = joined([Piece(*last), *begun] if ahead and last else begun)

    def close(self) -> None:
        """The thread has finished: unless the stream was interrupted, it has trained on all batches it was given."""
        while self._given:
            self._trained(self._given.pop(0))

    def _batches(
        self, reader: SplitReader, a_pass: int, piece: Piece, buffer: Batch, cutter: BatchCutter
    ) -> Iterator[Batch]:
        rows = reader.blocks[piece.block].rows
        order = shuffled(self._seed, 2, a_pass, piece.block, size=rows) if self._options.shuffle else np.arange(rows)
        block = reader.read(reader.blocks[piece.block], buffer)
        return cutter.batches(order[piece.start : piece.stop], block)


def joined(pieces: list[Piece]) -> list[Piece]:
    """The same rows, with adjacent pieces merged."""
    found: list[Piece] = []
    for piece in pieces:
        if found and (found[-1].block, found[-1].stop) == (piece.block, piece.start):
            found[-1] = found[-1]._replace(stop=piece.stop)
        else:
            found.append(piece)
    return found
