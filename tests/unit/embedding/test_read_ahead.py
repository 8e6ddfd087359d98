"""Rows on disk are read before they are pulled."""

import ctypes
import mmap
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
from test_keyed_table import tables_on

from ssmpi.data.batch import Batch
from ssmpi.embedding.client import KeyLookup
from ssmpi.embedding.placement import place
from ssmpi.embedding.read_ahead import ReadAhead
from ssmpi.embedding.stored_pages import TURNS, StoredPages
from ssmpi.runtime.bags import Bags, IdRoom
from ssmpi.runtime.mpi.shared_memory import nameless

WIDTH = 50  # floats: a row of 200 bytes, some of which lie on two pages
ROWS = 40_000


@pytest.fixture
def stored(disk):
    """Rows in a file of which nothing is in memory."""
    file, size = nameless(disk), 4 * WIDTH * ROWS
    os.write(file, np.arange(WIDTH * ROWS, dtype="f4").tobytes())
    os.fsync(file)
    os.posix_fadvise(file, 0, size, os.POSIX_FADV_DONTNEED)
    memory = mmap.mmap(file, size)
    memory.madvise(mmap.MADV_RANDOM)
    os.close(file)
    return np.frombuffer(memory, "f4").reshape(ROWS, WIDTH)


def in_memory(values):
    """The pages of ``values`` that are in memory, by number."""
    found = np.empty(-(-values.nbytes // mmap.PAGESIZE), np.uint8)
    where = [ctypes.c_void_p(array.ctypes.data) for array in (values, found)]
    assert ctypes.CDLL(None).mincore(where[0], ctypes.c_size_t(values.nbytes), where[1]) == 0
    return set(np.flatnonzero(found & 1).tolist())


def pages_of(rows):
    first, last = 4 * WIDTH * rows // mmap.PAGESIZE, (4 * WIDTH * (rows + 1) - 1) // mmap.PAGESIZE
    return {*first.tolist(), *last.tolist()}


def wait_for(values, pages):
    deadline = time.monotonic() + 30
    while in_memory(values) != pages:
        assert time.monotonic() < deadline, f"{in_memory(values)} are in memory, not {pages}"
        time.sleep(0.01)


def test_exactly_the_missing_pages_of_rows_are_read(stored):
    pages, rows = StoredPages(stored), np.arange(7, ROWS, 1_001, dtype=np.int32)
    assert in_memory(stored) == set()
    assert pages.start_reading(rows) == len(pages_of(rows))
    assert pages.start_reading(rows) == 0
    wait_for(stored, pages_of(rows))
    for _ in range(TURNS):
        pages.start_reading(rows[:0])
    more = rows + 100
    assert pages.start_reading(np.concatenate([rows, more])) == len(pages_of(more) - pages_of(rows))


class Asked:
    """Stands for the rows of a PS."""

    def __init__(self):
        self.rows = []

    def start_reading(self, rows):
        self.rows += rows.tolist()


@pytest.mark.parametrize("lists", [False, True], ids=["", "lists"])
def test_ids_are_routed_to_the_rows_of_each_ps(lists):
    """Those of a PS whose rows are not mapped, and of a batch with a bad id, are left out."""
    generator, placement = np.random.default_rng(1), place([1_000, 30, 7], 3)
    asked = [Asked(), None, Asked()]
    shards = [SimpleNamespace(rows=each) for each in asked]
    ahead = ReadAhead(SimpleNamespace(shards=shards, placement=placement))
    for rows in (5, 40, 11):
        for one in filter(None, asked):
            one.rows.clear()
        flat = np.stack([generator.integers(size, size=rows) for size in (1_000, 30, 7)], axis=1).astype(np.int32)
        ids = flat
        if lists:
            room = IdRoom(4 + flat.size, weighted=False)
            room.ids[:4], room.ids[4:] = -1, flat.reshape(-1)
            ids = Bags(room, 4 + np.arange(flat.size + 1), 3)
        ahead(SimpleNamespace(ids=ids))
        expected = [set(), set(), set()]
        for server in range(3):
            for part in placement.parts_of(server):
                own = flat[:, part.table][flat[:, part.table] % part.stride == part.first]
                expected[server] |= set((part.base + own // part.stride).tolist())
        for server in (0, 2):
            assert sorted(asked[server].rows) == sorted(expected[server])
    flat[3, 1] = 30
    asked[0].rows.clear()
    ahead(SimpleNamespace(ids=flat))
    assert asked[0].rows == []
    ahead(SimpleNamespace(ids=flat[:3]))
    assert asked[0].rows != []


def test_keys_are_found_without_being_seen():
    """The rows of known keys on mapped PSs, and those that others share there; a PS that is not mapped is not asked."""
    tables, keyed = tables_on(3, keyed=2, plain=1, mapped=[0, 2], keys=300)
    generator = np.random.default_rng(4)

    def batch_of(keys):
        plain = generator.integers(0, 9, (len(keys), 1), np.int32)
        return Batch(plain, np.empty((len(keys), 0)), np.empty(len(keys)), keys)

    known = batch_of(generator.integers(0, 100, (80, 2)))
    lookup = KeyLookup(tables, 0, counts=True)
    awaited = lookup.ids(known).awaited.asked
    tables.find(awaited, 0)
    for of_one in keyed:
        of_one.sweep(1_000)
    dates = [table.seen.copy() for of_one in keyed for table in of_one.values()]
    asked = [Asked(), None, Asked()]
    for shard, one in zip(tables.shards, asked, strict=True):
        shard.rows = one
    coming = batch_of(generator.integers(0, 130, (60, 2)))
    ReadAhead(tables)(coming)
    expected = [set(), set(), set()]
    for feature, column in enumerate([coming.ids[:, 0], *coming.keys.T]):
        for value in column.tolist():
            tables_of_feature = [of_one.get(feature) for of_one in keyed]
            at = {int(key): (p, row) for p, table in enumerate(tables_of_feature) if table
                  for row, key in enumerate(table.keys.tolist()) if key}  # fmt: skip
            p, row = at.get(value, (1 % 3, 0)) if feature and value else (value % 3, value // 3)
            if feature and value and p == 1:
                p, row = 1, 0  # as a key that is not known
            base = {part.table: part.base for part in tables.placement.parts_of(p)}[feature]
            expected[p].add(base + row)
    for p in (0, 2):
        assert sorted(asked[p].rows) == sorted(expected[p])
    for before, table in zip(dates, [table for of_one in keyed for table in of_one.values()], strict=True):
        np.testing.assert_array_equal(table.seen, before)
