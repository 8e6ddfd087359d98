"""The batches of one worker thread. It can be interrupted between any two of them and resumed later, by this process or
another one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from ssmpi.data.batch import Batch
from ssmpi.data.position import Piece
from ssmpi.data.reader import DataOptions, SplitReader, batches_in, shuffled


class Stream:
    """``begun`` holds the pieces started and not finished. With ``ahead``, the consumer prefetches: when it asks for a
    batch it has not trained on the previous one yet. ``trained(rows)`` is called for every batch as soon as it is known
    to be done.
    """

    def __init__(
        self, options: DataOptions, seed: int, trained: Callable[[Piece], None] = lambda rows: None, *, ahead: bool
    ) -> None:
        self._options, self._seed, self._trained, self._ahead = options, seed, trained, ahead
        self.begun: list[Piece] = []
        self._given: list[Piece] = []  # and perhaps not trained on yet
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
        begun, last, room, size = self.begun, None, reader.room(), self._options.batch_size
        batch_rooms = itertools.cycle([reader.room(size), reader.room(size)])
        self.begun, self._given, self._was_cut = [], [], False
        while not cut():
            piece = begun.pop(0) if begun else next_piece()
            if piece is None:
                if cut():
                    break
                return
            start = piece.start
            for batch in self._batches(reader, a_pass, piece, room, batch_rooms):
                if cut():
                    break
                last = Piece(piece.block, start, start + len(batch))
                start += len(batch)
                self._given.append(last)
                yield batch
                self._report_trained(all_but=int(self._ahead))
            if start < piece.stop:
                begun.insert(0, piece._replace(start=start))
        self._was_cut, self._given = True, []
        self.begun = joined([last, *begun] if self._ahead and last else begun)

    def close(self) -> None:
        """The thread has finished: unless the stream was interrupted, it has trained on all batches it was given."""
        self._report_trained(all_but=0)

    def _report_trained(self, all_but: int) -> None:
        while len(self._given) > all_but:
            self._trained(self._given.pop(0))

    def _batches(
        self, reader: SplitReader, a_pass: int, piece: Piece, room: Batch, batch_rooms: Iterator[Batch]
    ) -> Iterator[Batch]:
        rows = reader.blocks[piece.block].rows
        order = shuffled(self._seed, 2, a_pass, piece.block, size=rows) if self._options.shuffle else np.arange(rows)
        block = reader.read(reader.blocks[piece.block], room)
        return batches_in(order[piece.start : piece.stop], block, self._options.batch_size, batch_rooms)


def joined(pieces: list[Piece]) -> list[Piece]:
    """The same rows, with adjacent pieces merged."""
    found: list[Piece] = []
    for piece in pieces:
        if found and (found[-1].block, found[-1].stop) == (piece.block, piece.start):
            found[-1] = found[-1]._replace(stop=piece.stop)
        else:
            found.append(piece)
    return found
