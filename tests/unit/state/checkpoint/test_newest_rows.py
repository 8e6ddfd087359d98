"""The newest save of each row of an embedding PS, in whatever it is."""

import os

import numpy as np
import pytest
from rows import row_options

from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.runtime.errors import DataError
from ssmpi.state.checkpoint import files, store
from ssmpi.state.checkpoint.rows import newest
from ssmpi.state.checkpoint.rows.newest import restore
from ssmpi.state.checkpoint.rows.row_store import RowStore
from ssmpi.state.checkpoint.store import CheckpointManifest

TABLES, DIM, WHO = (40, 12, 6), 3, 1
OPTIONS = row_options(DIM)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def arena(index=WHO, servers=2, value=None):
    """Of a PS: fresh, or as if all rows were trained to hold ``value`` and their number in their table."""
    made = Arena(OPTIONS, place(TABLES, servers), index, 1)
    if value is not None:
        for part in made.parts:
            numbers = part.first + part.stride * np.arange(part.rows)
            made.weights[part.base : part.base + part.rows] = (1_000 * value + numbers)[:, None]
            made.state[part.base : part.base + part.rows] = value
    return made


@pytest.fixture
def run(tmp_path):
    (tmp_path / "rows").mkdir()
    return tmp_path


def save(run, examples, servers=2):
    """A committed checkpoint, in which every row holds ``examples``."""
    folder = run / "checkpoints" / f"checkpoint-{examples:06}"
    folder.mkdir(parents=True)
    entries = [
        files.write(folder / f"embedding-{k:04}.h5", arena(k, servers, examples).datasets()) for k in range(servers)
    ]
    entries.append(files.write(folder / "dense.h5", [("weights", np.zeros(1, np.float32), {})]))
    store.commit(folder, CheckpointManifest(tuple(entries), {"examples": examples}))
    return folder


def spoil(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def same(found, value):
    np.testing.assert_array_equal(found.weights, arena(value=value).weights)
    np.testing.assert_array_equal(found.state, arena(value=value).state)


def told(reloaded):
    return reloaded.samples, reloaded.rows, reloaded.source


def test_nothing_was_saved(run):
    found, fresh = arena(), arena()
    assert told(restore(found, WHO, run, [], 1)) == (0, len(fresh.weights), newest.SEED)
    np.testing.assert_array_equal(found.weights, fresh.weights)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_the_newest_checkpoint_of_any_number_of_servers(run, servers):
    checkpoints = [save(run, 20, servers), save(run, 10, servers)]
    found = arena()
    assert told(restore(found, WHO, run, checkpoints, 1)) == (20, len(found.weights), "checkpoint-000020")
    same(found, 20)


def test_a_damaged_file_of_its_own_makes_an_older_checkpoint_the_newest(run, caplog):
    checkpoints = [save(run, 20), save(run, 10)]
    spoil(checkpoints[0] / "embedding-0000.h5")  # not its own: nobody reads that
    found = arena()
    assert restore(found, WHO, run, checkpoints, 1).samples == 20
    spoil(checkpoints[0] / f"embedding-{WHO:04}.h5")
    assert restore(found, WHO, run, checkpoints, 1).samples == 10
    assert "checkpoint-000020 cannot be used" in caplog.text
    same(found, 10)
    spoil(checkpoints[1] / f"embedding-{WHO:04}.h5")
    with pytest.raises(DataError, match="damaged"):
        restore(found, WHO, run, checkpoints, 1)


def test_rows_saved_beside_training_are_newer(run):
    """Than the checkpoint as a whole; or their increments alone."""
    rows = RowStore(newest.path_of(run, WHO), arena(value=30), 1)
    rows.checkpoint = 20
    rows.save_all(30)
    old, found = [save(run, 20)], arena()
    assert told(restore(found, WHO, run, old, 1)) == (30, len(found.weights), "embedding-0001.rows")
    same(found, 30)
    assert restore(arena(), WHO, run, old, 2).source == "checkpoint-000020"  # of a future that did not come
    newer = [save(run, 50), *old]
    for value, some in ((40, [0, 1, 2]), (60, [1, 5])):
        rows._arena.weights[:], rows._arena.state[:] = arena(value=value).weights, arena(value=value).state
        rows.checkpoint = 50 if value > 50 else 20
        rows.save(np.array(some, np.int32), value, 0.25)
    assert told(restore(found, WHO, run, newer, 1)) == (
        50,
        len(found.weights),
        "checkpoint-000050 and embedding-0001.rows",
    )
    expected = arena(value=50)
    for name in ("weights", "state"):
        getattr(expected, name)[[1, 5]] = getattr(arena(value=60), name)[[1, 5]]
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    spoil(newest.path_of(run, WHO))  # the last increment
    assert restore(found, WHO, run, newer, 1).source == "checkpoint-000050"
    same(found, 50)


@pytest.mark.parametrize("base", [True, False])
def test_rows_saved_before_a_checkpoint_never_replace_its_rows(run, base):
    """Samples of a lost trainer are trained again, so that a save may be dated after a checkpoint that followed it."""
    rows = RowStore(newest.path_of(run, WHO), arena(value=30), 1)
    rows.checkpoint = 20
    rows.save_all(60 if base else 30)
    if not base:
        rows.save(np.array([1, 5], np.int32), 60, 1.0)
    found = arena()
    assert told(restore(found, WHO, run, [save(run, 50)], 1)) == (50, len(found.weights), "checkpoint-000050")
    same(found, 50)


def test_an_increment_after_a_checkpoint_replaces_its_rows(run):
    """The number of samples is reported now and then, so that it may be too low."""
    rows = RowStore(newest.path_of(run, WHO), arena(value=60), 1)
    rows.save_all(0)
    rows.checkpoint = 50
    rows.save(np.array([1, 5], np.int32), 40, 0.25)
    found, expected = arena(), arena(value=50)
    reloaded = restore(found, WHO, run, [save(run, 50)], 1)
    expected.weights[[1, 5]] = arena(value=60).weights[[1, 5]]
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert reloaded.samples == 50
    assert np.isnan(reloaded.unsaved.left)


def test_priority_saves_that_cover_all_rows_count_as_one(run):
    """Two of half of the rows each; a checkpoint that is newer than the base is loaded in place of that."""
    rows = RowStore(newest.path_of(run, WHO), arena(), 1)
    rows.save_all(0)
    rows.checkpoint = 10
    rows.save(np.array([0, 1], np.int32), 20, 0.5)
    assert restore(arena(), WHO, run, [], 1).samples == 0
    rows.checkpoint = 30
    rows.save(np.array([2, 3], np.int32), 40, 0.5)
    assert restore(arena(), WHO, run, [], 1).samples == 40
    before, between, after = save(run, 10), save(run, 30), save(run, 50)
    assert restore(arena(), WHO, run, [before], 1).samples == 40
    assert restore(arena(), WHO, run, [between], 1).samples == 40
    assert restore(arena(), WHO, run, [after], 1).samples == 50
    rows.compact()
    assert restore(arena(), WHO, run, [], 1).samples == 40
    assert restore(arena(), WHO, run, [between], 1).samples == 30  # which the merged base is older than
    rows.save(np.array([0, 1], np.int32), 60, 0.5)
    assert restore(arena(), WHO, run, [between], 1).samples == 30


@pytest.mark.parametrize(("left", "since"), [(500, 20), (3, None)])
def test_accesses_before_the_checkpoint_are_saved(run, left, since):
    """Those left by the newest priority save, counted since saves that are older than the checkpoint."""
    rows = RowStore(newest.path_of(run, WHO), arena(value=30), 1)
    rows.save_all(30)
    rows.checkpoint = 50
    rows.save(np.array([1, 5], np.int32), 70, 0.25, left=left)
    unsaved = restore(arena(), WHO, run, [save(run, 50)], 1).unsaved
    assert unsaved.left == (since * unsaved.per_sample if since else left)


def test_damaged_rows_give_way_to_the_checkpoint(run, caplog):
    RowStore(newest.path_of(run, WHO), arena(value=30), 1).save_all(30)
    spoil(newest.path_of(run, WHO))
    found = arena()
    assert restore(found, WHO, run, [save(run, 20)], 1).samples == 20
    assert "Its rows come from a checkpoint instead" in caplog.text
    same(found, 20)


def test_a_damaged_checkpoint_gives_way_to_older_rows(run):
    RowStore(newest.path_of(run, WHO), arena(value=30), 1).save_all(30)
    damaged, found = save(run, 50), arena()
    spoil(damaged / f"embedding-{WHO:04}.h5")
    assert restore(found, WHO, run, [damaged], 1).samples == 30
    same(found, 30)
