"""What is left of a deal, from what each trainer's memory has kept of it."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strength import at_least

from ssmpi.data.block_dispatcher import NOTHING_LEFT
from ssmpi.data.position import Piece, Position, StartedPiece
from ssmpi.data.trained_rows import Deal, TrainedRows, done_by, latest, rows_in_flight
from ssmpi.runtime.mpi.rank_memory import ProcessMemory


class KeptMemory(ProcessMemory):
    """Memory of one process that the next one finds again."""

    def __init__(self, arrays=None, notes=None):
        self.arrays, self.notes, self.kept = arrays or {}, notes or {}, arrays is not None

    def array(self, name, shape, dtype):
        return self.arrays.setdefault(name, np.zeros(shape, dtype))

    @property
    def noted(self):
        return self.notes

    def note(self, **changes):
        self.notes |= changes

    def next(self):
        return KeptMemory(self.arrays, self.notes)


def rows(pieces):
    return Counter((piece.block, row) for piece in pieces for row in range(piece.start, piece.stop))


WAITING = (Piece(3, 0, 100), Piece(5, 0, 40), Piece(3, 100, 130))


@at_least(100)
@given(st.lists(st.integers(1, 30), max_size=12), st.integers(0, 1))
def test_what_is_done_is_not_left_and_nothing_else_goes(batches, trainer):
    """One trainer works through all pieces in order; two of one block may lie in one batch."""
    memories = KeptMemory(), KeptMemory()
    trained = [TrainedRows(memory, 1, 3) for memory in memories]
    for each in trained:
        each.deal(Deal(1, 1_000, Position(2, 640, True, (), WAITING)))
    order, done = [WAITING[0], WAITING[2], WAITING[1]], []
    joined = [Piece(3, 0, 130), Piece(5, 0, 40)]  # as after a pause
    for piece in joined:
        start = piece.start
        while batches and start < piece.stop:
            stop = min(piece.stop, start + batches.pop())
            done.append(Piece(piece.block, start, stop))
            trained[trainer].add(0, done[-1])
            start = stop
        if start < piece.stop:
            break
    deal = latest([TrainedRows(memory.next(), 1, 0).kept() for memory in memories])
    assert rows(deal.position.waiting) + rows(done) == rows(order)
    assert deal.examples == 1_000 + sum(piece.rows for piece in done)
    assert (deal.position.part, deal.position.begun, deal.position.dealt) == (2, (), True)
    assert trained[trainer].batches.sum() == len(done)


def test_a_trainer_behind_the_latest_deal_has_done_none_of_it():
    ahead, behind = KeptMemory(), KeptMemory()
    for memory in (ahead, behind):
        trained = TrainedRows(memory, 1, 3)
        trained.deal(Deal(1, 0, Position(0, 640, True, (), WAITING)))
        trained.add(0, Piece(5, 0, 40))
    begun = (StartedPiece(0, 0, Piece(3, 10, 100)),)
    TrainedRows(ahead.next(), 1, 0).deal(Deal(2, 50, Position(0, 640, True, begun, WAITING[1:])))
    deal = latest([TrainedRows(memory.next(), 1, 0).kept() for memory in (ahead, behind)])
    assert (deal.number, deal.examples) == (2, 50)
    assert deal.position.waiting == (Piece(3, 10, 100), *WAITING[1:])


def test_a_deal_counts_once_its_note_is_there():
    """Killed while the next bank is cleared: the last deal is as it was."""
    memory = KeptMemory()
    trained = TrainedRows(memory, 1, 3)
    trained.deal(Deal(1, 0, Position(0, 640, True, (), WAITING)))
    trained.add(0, Piece(3, 0, 64))
    note = dict(memory.notes)
    trained.deal(Deal(2, 64, Position(1, 640, True, (), WAITING)))
    again = KeptMemory(memory.arrays, note)
    deal = latest([TrainedRows(again, 1, 0).kept()])
    assert deal.examples == 64
    assert deal.position.waiting[0] == Piece(3, 64, 100)
    assert latest([None, None]) is None


@at_least(100)
@given(st.data(), st.booleans())
def test_the_dealer_knows_what_a_trainer_has_done_and_has_in_hand(data, ahead):
    """Two threads each of two trainers, in any order; with ``ahead`` the last piece of a thread may not be done yet."""
    begun = tuple(StartedPiece(k // 2, k % 2, Piece(k, 10, 20)) for k in range(data.draw(st.integers(0, 4))))
    deal = Deal(3, 0, Position(0, 100, True, begun, tuple(Piece(9, 10 * n, 10 * n + 10) for n in range(6))))
    memory = KeptMemory()
    trained = TrainedRows(memory, 2, len(deal.pieces), dealer=True)
    trained.deal(deal)
    has = {asker: [n for n, each in enumerate(begun) if 2 * each.trainer + each.thread == asker] for asker in range(4)}
    done, left = set(), list(range(len(begun), len(deal.pieces)))
    for asker in data.draw(st.lists(st.integers(0, 3), max_size=12)):
        while len(has[asker]) > ahead:
            done.add((asker // 2, has[asker].pop(0)))
        given = left.pop(0) if left else -1
        trained.handed.asked(asker, given - len(begun) if given >= 0 else NOTHING_LEFT, ahead=ahead)
        has[asker] += [given] * (given >= 0)
    handed = TrainedRows(memory.next(), 2, 0, dealer=True).handed.kept(deal)
    for trainer in range(2):
        found = done_by(trainer, deal, handed)
        assert {(trainer, n) for n in np.flatnonzero(found)} == {each for each in done if each[0] == trainer}
        assert all(found[n] == deal.pieces[n].rows for n in np.flatnonzero(found))
        assert rows_in_flight(trainer, deal, handed) == 10 * sum(len(has[2 * trainer + k]) for k in range(2))
    rests = [Piece(piece.block, piece.stop - 3, piece.stop) for n, piece in enumerate(deal.pieces) if n in has[0]]
    trained.handed.quiesced(rests)
    handed = trained.handed.kept(deal)
    assert rows_in_flight(0, deal, handed) == 10 * len(has[0])
    assert rows_in_flight(1, deal, handed) == 0


class KilledAt:
    """A counter in memory; the process is killed at the ``call``-th write to one of these."""

    writes = 0

    def __init__(self, values, call):
        self.values, self.call = values, call

    def __getitem__(self, place):
        return self.values[place]

    def __setitem__(self, place, value):
        KilledAt.writes += 1
        if KilledAt.writes == self.call:
            raise KeyboardInterrupt
        self.values[place] = value


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_batch_that_is_repeated_is_reported_wherever_the_kill_comes(call, monkeypatch):
    monkeypatch.setattr(KilledAt, "writes", 0)
    memory = KeptMemory()
    trained = TrainedRows(memory, 1, 3)
    trained.deal(Deal(1, 0, Position(0, 640, True, (), WAITING)))
    for name in ("_rows", "_batches", "_bank"):
        setattr(trained, name, KilledAt(getattr(trained, name), call))
    with pytest.raises(KeyboardInterrupt):
        trained.add(0, Piece(3, 60, 110))  # of two pieces, after the 60 rows before it
    again = TrainedRows(memory.next(), 1, 0)
    done = max(0, int(again.kept()[1].sum()) - 60)
    assert again.in_flight(np.array([50])).lost >= (done < 50)
