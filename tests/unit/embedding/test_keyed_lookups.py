"""The keys of a thread's batches, looked up ahead, over an interruption."""

import numpy as np
import pytest
from rows import row_options

from ssmpi.data.batch import Batch
from ssmpi.embedding.client import Lookups, PrefetchedRows
from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.key_lookup import KeyLookup
from ssmpi.embedding.local_tables import LocalTables
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena

ADMISSION = DynamicOptions(keys=50, admit_after=3)


def batch_of(*keys):
    """A batch with these keys of one feature."""
    rows = len(keys)
    empty = np.empty((rows, 0), np.float32)
    return Batch(np.empty((rows, 0), np.int32), empty, np.zeros(rows), np.array(keys, np.int64).reshape(-1, 1))


@pytest.fixture
def thread():
    """Lookups of one thread, ahead by a batch; the table that they fill; and whether they are interrupted."""
    options = row_options(4, table="dynamic", dynamic=ADMISSION)
    placement, cut = place([0], 1, ADMISSION, ["user"]), {"now": False}
    arena = Arena(options, placement, 0, seed=5)
    tables = LocalTables(arena)
    prefetched = PrefetchedRows(lambda: cut["now"])
    keys = KeyLookup(tables, 1, [0], 0, counts=True)
    return Lookups(tables, placement, options, 0, prefetched, keys), arena.keyed[0], cut


def trained_on(lookups, *batches):
    """The keys of the batches that come out, and the rows of each."""
    return [(b.keys[:, 0].tolist(), rows.values[:, 0].copy()) for b, rows in lookups.prefetched(batches)]


def test_a_batch_that_is_cut_off_counts_once(thread):
    """A pause cuts it off after it was looked up ahead; when training goes on it comes again."""
    lookups, table, cut = thread
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


def test_a_batch_of_another_size_counts(thread):
    """After the batch size was changed what comes first is not what was looked up."""
    lookups, table, cut = thread
    cut["now"] = True
    trained_on(lookups, batch_of(1, 2))
    cut["now"] = False
    trained_on(lookups, batch_of(1, 2, 4))
    assert dict(table.candidates().tolist()) == {1: 2, 2: 2, 4: 1}
