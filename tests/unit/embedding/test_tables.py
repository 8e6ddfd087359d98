"""Tables survive being saved under one placement and loaded under another."""

import numpy as np
import pytest
from rows import row_options

from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.runtime.errors import DataError
from ssmpi.state.checkpoint import files, store
from ssmpi.state.checkpoint.model_files import find, load_tables

CARDINALITIES = (3, 500, 40, 1, 77)


def arenas(servers, seed, **options):
    plan = place(CARDINALITIES, servers)
    return [Arena(row_options(dim=4, **options), plan, server, seed) for server in range(servers)]


def by_table(parts, what):
    """Weights or state of whole tables, wherever the rows are."""
    tables = [np.full((rows, *getattr(parts[0], what).shape[1:]), np.nan, np.float32) for rows in CARDINALITIES]
    for arena in parts:
        for p in arena.parts:
            tables[p.table][p.first :: p.stride] = getattr(arena, what)[p.base : p.base + p.rows]
    return tables


def save(parts, folder):
    written = [files.write(folder / "dense.h5", [("weight", np.zeros(1, np.float32), {})])]
    for server, arena in enumerate(parts):
        written.append(files.write(folder / f"embedding-{server:04}.h5", arena.datasets()))
    store.commit(folder, store.CheckpointManifest(tuple(written), {}))


@pytest.mark.parametrize("before", [1, 2, 3, 7])
@pytest.mark.parametrize("after", [1, 2, 4, 6])
@pytest.mark.parametrize("weight", [False, True])
def test_any_placement_loads_what_any_other_saved(tmp_path, before, after, weight):
    """Vectors, and weights too if rows have them."""
    generator = np.random.default_rng(0)
    saved, loaded = arenas(before, seed=1, weight=weight), arenas(after, seed=2, weight=weight)
    for arena in saved:
        arena.weights[:], arena.state[:] = generator.random(arena.weights.shape), generator.random(arena.state.shape)
    save(saved, tmp_path)
    for arena in loaded:
        load_tables(arena, tmp_path)
    for what in ("weights", "state"):
        for one, other in zip(by_table(saved, what), by_table(loaded, what), strict=True):
            np.testing.assert_array_equal(one, other)


def test_as_many_servers_as_saved_open_a_file_each(tmp_path, monkeypatch):
    """Else a resumed job of n PSs opens n * n files of a shared disk."""
    opened, load = [], Arena.load
    monkeypatch.setattr(
        Arena, "load", lambda arena, path, *a, **how: opened.append(path.name) or load(arena, path, *a, **how)
    )
    save(arenas(3, seed=1), tmp_path)
    for server, arena in enumerate(arenas(3, seed=2)):
        load_tables(arena, tmp_path, server)
    assert opened == ["embedding-0000.h5", "embedding-0001.h5", "embedding-0002.h5"]


def test_a_missing_part_is_noticed(tmp_path):
    save(arenas(3, seed=1), tmp_path)
    (tmp_path / "embedding-0001.h5").unlink()
    with pytest.raises(DataError, match=r"embedding-0001\.h5: cannot be read .*the saved model is damaged"):
        load_tables(arenas(1, seed=1)[0], tmp_path)


@pytest.mark.parametrize("dim", [1, 3, 5])
def test_rows_of_another_size_than_the_settings_say_are_refused(tmp_path, dim):
    """``embedding.dim`` was edited in the run folder's settings; rows of one float would fit into any."""
    save(arenas(1, seed=1), tmp_path)
    saved = rf"embedding-0000\.h5: rows of 4 floats, but embedding\.dim = {dim} in the settings: set model"
    with pytest.raises(DataError, match=saved):
        load_tables(Arena(row_options(dim=dim), place(CARDINALITIES, 1), 0, seed=1), tmp_path)


WEIGHTED = [(5, False, "5 floats"), (4, True, "4 floats and a first-order weight"), (4, False, "4 floats")]


@pytest.mark.parametrize(("dim", "weight", "saved"), WEIGHTED)
def test_rows_of_another_layout_are_refused(tmp_path, dim, weight, saved):
    """A vector of 5 is no vector of 4 and a weight, though as wide."""
    plan = place(CARDINALITIES, 1)
    save([Arena(row_options(dim, weight=weight), plan, 0, seed=1)], tmp_path)
    ours = row_options(4, weight=True) if not weight else row_options(5)
    words = "embedding.dim = 4 and a first-order weight" if not weight else "embedding.dim = 5"
    with pytest.raises(DataError, match=rf"rows of {saved}, but {words} in the settings"):
        load_tables(Arena(ours, plan, 0, seed=1), tmp_path)


def test_tables_saved_before_files_told_their_layout_are_vectors(tmp_path):
    (saved,) = arenas(1, seed=1)
    older = [
        (name, values, {key: value for key, value in place.items() if key != "vector"})
        for name, values, place in saved.datasets()
    ]
    assert all(values.ndim == 1 for name, values, _ in older if name.endswith("state"))
    entries = [files.write(tmp_path / name, data) for name, data in
               (("dense.h5", [("weight", np.zeros(1, np.float32), {})]), ("embedding-0000.h5", older))]  # fmt: skip
    store.commit(tmp_path, store.CheckpointManifest(tuple(entries), {}))
    (loaded,) = arenas(1, seed=2)
    load_tables(loaded, tmp_path)
    np.testing.assert_array_equal(loaded.weights, saved.weights)


def test_a_model_that_was_not_saved_to_the_end_is_refused(tmp_path):
    with pytest.raises(DataError, match="no complete model here"):
        find(tmp_path)
