"""What one trainer trains on: the part of the run that it is in, what is left of that part, the batches of its threads,
and the count of trained rows. A thread can be interrupted between any two batches and resumed later, by this process or
another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.data.batch import Batch
from ssmpi.data.block_dispatcher import BlockDispatcher, block_order, part_of
from ssmpi.data.position import Piece, Position, Rows, StartedPiece
from ssmpi.data.reader import BatchCutter, ComingRows, DataOptions, SplitReader, shuffled, suit_block_rows
from ssmpi.data.trained_rows import Deal, TrainedRows

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation
    from ssmpi.runtime.mpi.rank_memory import RankMemory
    from ssmpi.runtime.topology import Topology


EXAMPLES = 2**31  # numbers of the first examples of blocks, which begin elsewhere in each pass


@dataclass(frozen=True)
class FeedOptions:
    """How a run iterates over its data: over how many trainers and threads, in how many parts per pass, whether
    threads prefetch a batch (``ahead``), and whether parts follow each other in the order of the rows (``in_time``).
    """

    data: DataOptions
    topology: Topology
    seed: int
    per_pass: int
    ahead: bool
    in_time: bool = False

    def block_rows(self, rows: int) -> int:
        """Rows per block for a pass of ``rows`` rows."""
        return suit_block_rows(self.data, rows, self.topology.lanes * self.per_pass)


@dataclass
class ThreadPieces:
    """Of one worker thread: the pieces ``begun`` and not finished, the rows ``given`` out that may not be trained on
    yet, and whether its batches ended because it was ``interrupted``, not because there are no more.
    """

    begun: list[Piece] = field(default_factory=list)
    given: list[Rows] = field(default_factory=list)
    interrupted: bool = False


class Feed:
    """``position`` is the same on all trainers whenever training is paused; ``reader`` cuts the blocks of this pass.
    Rows of a shard are dealt only once the shard is in ``checked``. ``dealt`` is the last deal, or the start of the
    run; ``trained`` counts the rows trained on, in ``memory``. ``advanced`` is whether rows were trained on that the
    checkpoint at the start does not hold.
    """

    def __init__(
        self, options: FeedOptions, trainer: int, reader: SplitReader, checked: set[int], dealt: Deal,
        memory: RankMemory,
    ) -> None:  # fmt: skip
        self._options, self._trainer, self.reader, self.position = options, trainer, reader, dealt.position
        self.checked, self._dealt, threads = checked, dealt, options.topology.threads
        self.trained = TrainedRows(memory, threads, most_pieces(options, reader, dealt.position), dealer=trainer == 0)
        self._threads = [ThreadPieces() for _ in range(threads)]
        self._pass, self._pieces, self._example = 0, self.position.waiting, 0
        self.dispatcher: BlockDispatcher | None = None
        self.advanced = False

    def parts(self) -> Iterator[int]:
        """The parts of the run; a part repeats until all of it has been trained on."""
        per_pass = self._options.per_pass
        while self.position.part < self._options.data.passes * per_pass:
            if not self.dispatcher or not self.position.dealt:
                self.dispatcher = self._deal()
            yield self.position.part
            self.position = self.coming

    @property
    def coming(self) -> Position:
        """The position after this part, if it is done, and its evaluation."""
        return self.position.next(self._options.per_pass) if self.position.done else self.position

    @property
    def examples(self) -> int:
        """How many examples of all trainers are trained on, while training is paused."""
        return self._dealt.examples + self._dealt.position.left - self.position.left

    def batches(
        self, thread: int, next_number: Callable[[int], int], must_pause: Callable[[], bool],
        read_ahead: ComingRows | None = None,
    ) -> Iterator[Batch]:  # fmt: skip
        """The batches of one worker thread: first of the pieces that it had started, then of those that
        ``next_number(thread)`` gives, until there are none or it ``must_pause()``. Each batch overwrites the one before
        the last. With ``ahead`` the thread asks for a batch before it has trained on the previous one;
        ``read_ahead`` is as for ``BatchCutter``.
        """
        mine, buffer, ahead = self._threads[thread], self.reader.buffer(), int(self._options.ahead)
        begun, given, last = mine.begun, list[Rows](), None
        cutter, trained = BatchCutter(buffer, self._options.data.batch_size, read_ahead), self.trained.add
        mine.begun, mine.given, mine.interrupted = [], given, False
        while not must_pause():
            piece = begun.pop(0) if begun else self._piece(next_number(thread))
            if piece is None:
                if must_pause():
                    break
                return
            number, start, end = piece
            example = (self._example + number * self.position.block_rows) % EXAMPLES
            for batch in self._batches_of(piece, buffer, cutter):
                if must_pause():
                    break
                batch.first_example = example + start
                last = number, start, start + len(batch.labels)
                start = last[2]
                given.append(last)
                yield batch
                if len(given) > ahead:
                    trained(thread, given.pop(0))
            if start < end:
                begun.insert(0, piece._replace(start=start))
        mine.interrupted, mine.given = True, []
        mine.begun = joined([Piece(*last), *begun] if ahead and last else begun)

    def interrupted(self, thread: int) -> bool:
        """Whether the batches of a thread ended because it was interrupted, not because there are no more."""
        return self._threads[thread].interrupted

    def _piece(self, number: int) -> Piece | None:
        return self._pieces[number] if number >= 0 else None

    def _batches_of(self, piece: Piece, buffer: Batch, cutter: BatchCutter) -> Iterator[Batch]:
        options, block = self._options, self.reader.blocks[piece.block]
        order = np.arange(block.rows)
        if options.data.shuffle:
            order = shuffled(options.seed, 2, self._pass, piece.block, size=block.rows)
        return cutter.batches(order[piece.start : piece.stop], self.reader.read(block, buffer))

    def shards(self) -> Iterator[int]:
        """All shards in the order in which this part and the rest of its pass need them, some more than once."""
        begun = [begun.piece for begun in self.position.begun]
        yield from (self._shard(piece.block) for piece in [*begun, *self._pieces])
        yield from map(self._shard, self._order())

    def unseen(self) -> list[int]:
        """The blocks of this part if nobody has been trained on any of its rows: in the first pass, before the part
        begins; else none.
        """
        blocks = self._blocks_of_part()
        first = self.position.part < self._options.per_pass
        return blocks if first and self.position.left == sum(self.reader.blocks[k].rows for k in blocks) else []

    def _order(self) -> list[int]:
        """The blocks of this pass in dealing order."""
        options = self._options
        parts = options.per_pass if options.in_time else 1
        return block_order(options.data, options.seed, self._pass, len(self.reader.blocks), parts)

    def _blocks_of_part(self) -> list[int]:
        """The blocks of this part in dealing order."""
        order, per_pass = self._order(), self._options.per_pass
        return [order[place] for place in part_of(len(order), self.position.part % per_pass, per_pass)]

    def _shard(self, block: int) -> int:
        return self.reader.blocks[block].shard

    def close(self) -> None:
        """The worker threads have ended, or paused: one that was not interrupted has trained on all it was given."""
        for thread, mine in enumerate(self._threads):
            while mine.given:
                self.trained.add(thread, mine.given.pop(0))

    def gather_remaining(self, trainers: Conversation) -> None:
        """Merge what all trainers have left of this part. Every trainer calls it while training is paused, after
        ``close``.
        """
        assert self.dispatcher
        mine = [StartedPiece(self._trainer, k, piece) for k, of in enumerate(self._threads) for piece in of.begun]
        waiting = [self._pieces[number] for number in self.dispatcher.waiting()] if self._trainer == 0 else []
        found = trainers.gather((mine, waiting))
        begun = tuple(one for each, _ in found for one in each)
        if self.trained.handed:
            self.trained.handed.quiesced([each.piece for each in begun])
        self.position = replace(self.position, begun=begun, waiting=tuple(found[0][1]))
        self.advanced |= self.position.left < self._dealt.position.left

    def _deal(self) -> BlockDispatcher:
        """Cut this part of the pass into pieces, or take those that a checkpoint left, and prepare to deal them."""
        data, position, per_pass = self._options.data, self.position, self._options.per_pass
        self._pass = position.part // per_pass
        self._example = int(np.random.SeedSequence([self._options.seed, 3, self._pass]).generate_state(1)[0])
        rows = position.block_rows or self._options.block_rows(self.reader.rows)
        self.reader = SplitReader(self.reader.folder, data.train_split, rows)
        examples = self._dealt.examples
        if not position.dealt:
            examples += self._dealt.position.left  # of the previous part, all of which is done
            waiting = tuple(Piece(k, 0, self.reader.blocks[k].rows) for k in self._blocks_of_part())
            position = Position(position.part, rows, True, (), waiting)
        self._pieces, self.position = position.waiting, position
        self._dealt = Deal(self._dealt.number + 1, examples, position)
        self.trained.deal(self._dealt)
        for thread, mine in enumerate(self._threads):
            mine.begun = position.of(self._trainer, thread)
        pieces, order, topology = self._pieces, list(range(len(self._pieces))), self._options.topology
        dispatcher = BlockDispatcher(
            data, order, topology.lanes, lambda number: self._shard(pieces[number].block) in self.checked,
            topology.lane_of,
        )  # fmt: skip
        if handed := self.trained.handed:
            dispatcher.on_answer = partial(handed.asked, ahead=self._options.ahead)
        return dispatcher


def most_pieces(options: FeedOptions, reader: SplitReader, position: Position) -> int:
    """The most pieces that are dealt at once in a run from ``position`` on."""
    sizes = {options.block_rows(reader.rows), position.block_rows} - {0}
    most = max(len(SplitReader(reader.folder, options.data.train_split, rows).blocks) for rows in sizes)
    return max(most, len(position.begun) + len(position.waiting))


def joined(pieces: list[Piece]) -> list[Piece]:
    """The same rows, with adjacent pieces merged."""
    found: list[Piece] = []
    for piece in pieces:
        if found and (found[-1].block, found[-1].stop) == (piece.block, piece.start):
            found[-1] = found[-1]._replace(stop=piece.stop)
        else:
            found.append(piece)
    return found
