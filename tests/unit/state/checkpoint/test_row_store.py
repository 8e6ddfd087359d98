"""Whatever is saved, and wherever a file ends, each row reads back as it was in its last save that is whole."""

import itertools
import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import row_options
from strength import at_least

from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.state.checkpoint import disk
from ssmpi.state.checkpoint.rows import records
from ssmpi.state.checkpoint.rows.row_store import RowStore

OPTIMIZERS = ("sgd", "rowwise_adagrad", "adam", "partial_rowwise_adam")
LAYOUTS = (
    {"optimizer": "sgd"},
    {},
    {"weight": True},
    {"optimizer": "sgd", "weight": True},
    {"optimizer": "adam", "weight": True},
)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "embedding-0000.rows"


def arena_of(rows=8, optimizer="rowwise_adagrad", seed=1, dim=3, weight=False):
    return Arena(row_options(dim=dim, weight=weight, optimizer=optimizer), place((rows - 2, 2), 1), 0, seed)


def values_of(arena):
    """All bits of all rows, (rows, width)."""
    state = arena.state.reshape(len(arena.weights), -1)
    return np.concatenate([state, arena.weights], axis=1)


def train(arena, generator):
    """Change every float."""
    arena.weights[:] = generator.normal(size=arena.weights.shape)
    arena.state[:] = generator.random(arena.state.shape)


def loaded(path, like, timeline=0):
    """What another process finds: the values of its arena, and the saved rows; None if nothing was saved."""
    arena = Arena(like.options, place(like.cardinalities, 1), 0, seed=99)
    store = RowStore(path, arena, timeline)
    saved = store.load()
    if saved is None:
        return None
    store.restore(saved)
    return values_of(arena), saved, store


def numbers(*rows):
    return np.array(rows, np.int32)


STEPS = st.lists(
    st.one_of(
        st.sets(st.integers(0, 7)).map(lambda rows: ("save", numbers(*sorted(rows)))),
        st.sampled_from([("save_all",), ("compact",), ("another process",), ("torn",)]),
    ),
    max_size=12,
)


@at_least(60)
@given(st.sampled_from(LAYOUTS), STEPS, st.floats(0, 1), st.sampled_from([1, 20, 10_000]))
def test_any_saves_torn_at_any_byte_read_back(tmp_path_factory, layout, steps, cut, piece):
    path = tmp_path_factory.mktemp("rows") / "embedding-0000.rows"
    arena, generator = arena_of(**layout), np.random.default_rng(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE", piece)  # a row at a time, two, all
        store = RowStore(path, arena, 0)
        size = store.save_all(0)
        saved = values_of(arena)
        wholes = [(size, saved.copy())]  # by the end of each record in the file, what is saved then
        for samples, (step, *rows) in enumerate(steps, 1):
            train(arena, generator)
            if step == "save":
                written = store.save(*rows, samples, 0.25)
                saved[rows[0]] = values_of(arena)[rows[0]]
                wholes.append((wholes[-1][0] + written, saved.copy()))
            elif step == "torn":
                path.write_bytes(path.read_bytes()[: wholes[-1][0]] + bytes(generator.integers(0, 256, 150, np.uint8)))
            elif step == "another process":
                store = RowStore(path, arena, 0)
                store.load()
            else:
                if step == "save_all":
                    saved = values_of(arena)
                wholes = [(store.save_all(samples) if step == "save_all" else store.compact(), saved.copy())]
            found, rows_there, _ = loaded(path, arena)
            np.testing.assert_array_equal(found, saved)
            assert [record.end for record in rows_there.records] == [end for end, _ in wholes]
        content = path.read_bytes()[: wholes[-1][0]]
        end = wholes[0][0] + round(cut * (len(content) - wholes[0][0]))
        path.write_bytes(content[:end])
        found, rows_there, again = loaded(path, arena)
        np.testing.assert_array_equal(found, [values for whole, values in wholes if whole <= end][-1])
        assert rows_there.end == max(whole for whole, _ in wholes if whole <= end)
        again.save(numbers(0, 7), 100, 0.25)
        np.testing.assert_array_equal(loaded(path, arena)[0], found)


def test_a_changed_bit_anywhere_is_noticed(path, monkeypatch):
    """In the base the file is refused; in an increment that one and those after it are dropped, and the log says so."""
    said = []
    monkeypatch.setattr(log, "warning", said.append)
    arena, generator = arena_of(dim=1), np.random.default_rng(2)
    store = RowStore(path, arena, 0)
    ends, snapshots = [store.save_all(0)], [values_of(arena)]
    for rows in (numbers(1, 5), numbers(0, 1, 7)):
        train(arena, generator)
        ends.append(ends[-1] + store.save(rows, 10, 0.25))
        snapshots.append(snapshots[-1].copy())
        snapshots[-1][rows] = values_of(arena)[rows]
    content = path.read_bytes()
    assert len(content) == ends[-1]
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
        if at < ends[0]:
            with pytest.raises(DataError, match=r"embedding-0000\.rows: damaged: its first record.* remove the file"):
                loaded(path, arena)
            assert not said
            continue
        whole = 1 if at < ends[1] else 2
        np.testing.assert_array_equal(loaded(path, arena)[0], snapshots[whole - 1])
        (text,) = said
        assert f"{path}: {ends[2] - ends[whole - 1]:,} bytes at its end are an incomplete record" in text
        said.clear()


def test_an_empty_file_is_refused_and_none_is_none(path):
    arena = arena_of()
    assert loaded(path, arena) is None
    path.touch()
    with pytest.raises(DataError, match="damaged"):
        loaded(path, arena)


def test_rows_of_a_future_that_did_not_come_are_not_found(path):
    """A full recovery begins a new timeline; until its first save there is only the checkpoint."""
    arena, generator = arena_of(), np.random.default_rng(3)
    store = RowStore(path, arena, 0)
    store.save_all(0)
    store.save(numbers(2), 50, 0.25)
    train(arena, generator)
    assert loaded(path, arena, timeline=1) is None
    RowStore(path, arena, 1).save_all(40)
    found, saved, _ = loaded(path, arena, timeline=1)
    np.testing.assert_array_equal(found, values_of(arena))
    assert saved.base.header.samples == 40
    assert loaded(path, arena, timeline=0) is None


def test_increments_of_another_timeline_do_not_continue_a_base(path):
    arena = arena_of()
    RowStore(path, arena, 1).save_all(0)
    other = path.with_name("other")
    stray = RowStore(other, arena, 0)
    edge = stray.save_all(0)
    arena.weights += 1
    stray.save(numbers(3), 5, 0.25)
    path.write_bytes(path.read_bytes() + other.read_bytes()[edge:])
    assert len(loaded(path, arena, timeline=1)[1].records) == 1


@pytest.mark.parametrize("other", [{"rows": 9}, {"dim": 4}, {"dim": 2, "weight": True}, {"optimizer": "sgd"}])
def test_rows_of_other_tables_are_refused(path, other):
    RowStore(path, arena_of(), 0).save_all(0)
    with pytest.raises(DataError, match=r"embedding-0000\.rows: holds the rows of other tables.* set topology"):
        RowStore(path, arena_of(**other), 0).load()


def test_compaction_is_due_when_increments_are_larger_than_the_base(path):
    arena = arena_of(rows=400)
    store = RowStore(path, arena, 0)
    base, written, every = store.save_all(7), 0, np.arange(0, 400, 4, dtype=np.int32)
    while not store.increments_outweigh_base:
        assert written <= base
        written += store.save(every, 9, 0.25)
    assert written > base
    assert store.compact() == base == path.stat().st_size
    assert not store.increments_outweigh_base
    assert loaded(path, arena)[1].base.header.samples == 7  # what covers all rows is as old as before


@pytest.mark.parametrize(
    ("share", "counts"), [(0.25, [7, 7, 7, 13, 13, 13, 13, 17]), (0.4, [7, 7, 12, 12, 14, 14, 14, 17])]
)
def test_increments_that_come_to_a_save_of_all_rows_count_as_one(path, share, counts):
    """One increment for each 1,000 samples; in other processes, and after each has become part of the base, too."""
    arena, found = arena_of(), []
    store = RowStore(path, arena, 0)
    store.save_all(7)
    for samples in range(10, 18):
        store.save(numbers(samples % 8), samples, share)
        store = loaded(path, arena)[2]
        found.append(store.covered)
        if samples % 3 == 0:
            store.compact()
            assert store.covered == found[-1]
            assert loaded(path, arena)[1].base.header.samples == 7  # of its oldest row
    assert found == counts
    store.save_all(20)
    assert store.covered == 20


class CutOffError(BaseException):
    """The process ends here: nothing but the files' closing is done on the way out."""


def at_change(patch, number, error):
    """Raise ``error`` before the ``number``-th change on disk, half of a write being done."""
    count = itertools.count(1)

    def counted(name, original):
        def change(*arguments):
            if next(count) == number:
                if name == "write_at":
                    original(arguments[0], arguments[1][: len(arguments[1]) // 2], arguments[2])
                raise error
            return original(*arguments)

        return change

    for name in ("created", "write_at", "truncate", "sync", "sync_folder", "rename"):
        patch.setattr(disk, name, counted(name, getattr(disk, name)))


SAVES = {
    "save_all": (slice(None), lambda store: store.save_all(2)),
    "save": (numbers(0, 3), lambda store: store.save(numbers(0, 3), 2, 0.25)),
    "compact": (numbers(), lambda store: store.compact()),
}


@pytest.mark.parametrize("error", [CutOffError, OSError])
@pytest.mark.parametrize("step", SAVES)
def test_killed_or_failing_at_any_change_on_disk(path, step, error):
    """What was saved before counts, or what was being saved; the next save of this process or another works."""
    rows, save = SAVES[step]
    for number in itertools.count(1):
        arena, generator = arena_of(), np.random.default_rng(number)
        store = RowStore(path, arena, 0)
        store.save_all(0)
        train(arena, generator)
        store.save(numbers(3, 4), 1, 0.25)
        before, _, _ = loaded(path, arena)
        train(arena, generator)
        after = before.copy()
        after[rows] = values_of(arena)[rows]
        with pytest.MonkeyPatch.context() as patch:
            at_change(patch, number, error(28, "No space left on device"))
            try:
                save(store)
            except error as ended:
                text = str(ended)
            else:
                break
        found, _, _ = loaded(path, arena)
        assert found.tolist() in (before.tolist(), after.tolist())
        if error is CutOffError:
            store = RowStore(path, arena, 0)
            store.load()
        else:
            assert "bytes needed" in text
            assert str(path) in text
        train(arena, generator)
        store.save(numbers(1, 7), 3, 0.25)
        if (step, error) == ("save", OSError):
            found = before  # this process takes a failed increment back, even one of which only the sync failed
        found[[1, 7]] = values_of(arena)[[1, 7]]
        np.testing.assert_array_equal(loaded(path, arena)[0], found)
    assert number > 4


def test_rows_are_saved_whole_while_they_are_updated(path):
    """No rest: the checksum is that of what is written, and every value is one that the row has had."""
    arena = arena_of(rows=5000, dim=16)
    arena.weights[:] = arena.state[:] = 0
    store, done = RowStore(path, arena, 0), threading.Event()

    def update():
        for step in itertools.count(1):
            if done.is_set():
                return
            arena.weights[:] = step
            arena.state[:] = step

    updates = threading.Thread(target=update)
    updates.start()
    try:
        store.save_all(0)
        for _ in range(20):
            store.save(np.arange(0, 5000, 2, dtype=np.int32), 1, 0.5)
    finally:
        done.set()
        updates.join()
    found, saved, _ = loaded(path, arena)
    assert len(saved.records) == 21
    assert np.all(found == np.round(found))
    assert found.max() <= arena.weights.max()
