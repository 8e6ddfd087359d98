"""Where a run stands is kept row by row, however often it is cut and whoever goes on with it."""

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from strength import at_least

from ssmpi.data.feed import joined
from ssmpi.data.position import Piece, Position, StartedPiece

PIECES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300), st.integers(1, 200)), max_size=8).map(
    lambda found: [Piece(block, start, start + rows) for block, start, rows in found]
)


def rows(pieces):
    return Counter((piece.block, row) for piece in pieces for row in range(piece.start, piece.stop))


@at_least(100)
@given(PIECES, PIECES, st.integers(1, 40), st.integers(1, 64))
def test_others_get_the_same_rows_and_some_for_each(begun, waiting, threads, batch_size):
    position = Position(
        3, 640, True, tuple(StartedPiece(k % 2, k % 3, piece) for k, piece in enumerate(begun)), tuple(waiting)
    )
    position = Position.of_state(json.loads(json.dumps(position.state())))
    others = position.for_others(threads, batch_size)
    assert rows(others.waiting) == rows(begun + waiting)
    assert others.begun == ()
    assert (others.part, others.block_rows, others.dealt) == (3, 640, True)
    if others.left >= 4 * threads * batch_size:
        assert len(others.waiting) >= 4 * threads  # so that fast ones take more


@at_least(100)
@given(PIECES)
def test_joining_neighbours_changes_no_row(pieces):
    assert rows(joined(pieces)) == rows(pieces)
    assert joined([Piece(1, 0, 5), Piece(1, 5, 9), Piece(2, 9, 12)]) == [Piece(1, 0, 9), Piece(2, 9, 12)]


def test_the_parts_of_a_pass_share_its_blocks():
    start = Position(0, 640, True)
    assert start.done
    assert start.next(per_pass=2) == Position(1, 640)
    assert not start.next(per_pass=2).done
    assert Position(1, 640, True).next(per_pass=2) == Position(2, 0)
