"""The keys of a thread's batches, looked up ahead, over an interruption."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rows import row_options

from ssmpi.data.batch import Batch
from ssmpi.embedding.client import Lookups, PrefetchedRows
from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.placement import place
from ssmpi.embedding.shards import local_tables
from ssmpi.embedding.table import Arena


def batch_of(*keys):
    """A batch with these keys of one feature."""
    rows = len(keys)
    empty = np.empty((rows, 0), np.float32)
    return Batch(np.empty((rows, 0), np.int32), empty, np.zeros(rows), np.array(keys, np.int64).reshape(-1, 1))


def a_thread(dynamic):
    """Lookups of one thread, ahead by a batch; the table that they fill; and whether they are interrupted."""
    options = row_options(4, dynamic=dynamic)
    placement, cut = place([0], 1, dynamic, ["user"]), {"now": False}
    arena = Arena(options, placement, 0, seed=5)
    tables = local_tables(arena)
    prefetched = PrefetchedRows(lambda: cut["now"])
    return Lookups(tables, 0, prefetched), arena.keyed[0], cut


def trained_on(lookups, *batches):
    """The keys of the batches that come out, and the rows of each."""
    return [(b.keys[:, 0].tolist(), rows.values[:, 0].copy()) for b, rows in lookups.prefetched(batches)]


def test_a_batch_that_is_cut_off_counts_once():
    """A pause cuts it off after it was looked up ahead; when training goes on it comes again."""
    lookups, table, cut = a_thread(DynamicOptions(keys=50, admit_after=3))
    first, second, third = batch_of(7, 8), batch_of(7, 9), batch_of(9, 9)
    cut["now"] = True
    assert [keys for keys, _ in trained_on(lookups, first, second)] == [[7, 8]]
    table.sweep(2)
    assert dict(table.candidates().tolist()) == {7: 2, 8: 1, 9: 1}
    cut["now"] = False
    (again, rows), (last, _) = trained_on(lookups, second, third)
    assert (again, last) == ([7, 9], [9, 9])
    assert dict(table.candidates().tolist()) == {7: 2, 8: 1}
    assert table.keys[table.in_use()].tolist() == [9], "seen a third time in the last batch"
    np.testing.assert_array_equal(rows[0], rows[1], err_msg="the shared row, for both")


@given(
    before=st.lists(st.integers(1, 9), max_size=12), held=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    after=st.lists(st.integers(1, 9), max_size=12), size=st.integers(1, 14),
)  # fmt: skip
def test_rows_that_were_looked_up_ahead_count_once_in_batches_of_any_size(before, held, after, size):
    """A pause cuts off the batch ``held``; when training goes on its rows come again, in batches of another size."""
    lookups, table, cut = a_thread(DynamicOptions(keys=50, admit_after=1_000))
    cut["now"] = True
    trained_on(lookups, *[batch_of(*keys) for keys in (before, held) if keys])
    cut["now"] = False
    rest = [*held, *after]
    trained_on(lookups, *[batch_of(*rest[k : k + size]) for k in range(0, len(rest), size)])
    assert dict(table.candidates().tolist()) == Counter([*before, *held, *after])
