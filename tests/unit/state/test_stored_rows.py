"""The forecast of lookups that miss memory, beside a cache that is played out."""

import mmap
import re
import shutil
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from datasets import write_counts

from ssmpi.config import load
from ssmpi.data.schema import read_manifest
from ssmpi.embedding.placement import place
from ssmpi.runtime.errors import DataError
from ssmpi.state.stored_rows import HOT, hot_bytes, hot_rows, missed, occurrences
from ssmpi.tools.plan import describe as plan

ROW = 64  # bytes: so many rows a page
PER_PAGE = mmap.PAGESIZE // ROW


def played(pages, hot, room):
    """The share of misses in the second half of these lookups of pages, of which the ``hot`` ones and the last others,
    ``room`` in all, stay.
    """
    cache, misses, room = OrderedDict(), 0, room - len(hot)
    for k, page in enumerate(pages):
        if page in hot:
            continue
        if page in cache:
            cache.move_to_end(page)
        else:
            misses += k >= len(pages) // 2
            cache[page] = None
            if len(cache) > room:
                cache.popitem(last=False)
    return misses / (len(pages) - len(pages) // 2)


@pytest.mark.parametrize("times", [4, 10], ids="a {}th in memory".format)
@pytest.mark.parametrize("skew", [1.05, 1.2])
def test_the_forecast_is_that_of_a_cache_that_is_played_out(skew, times):
    """Two tables, looked up in turns; the seed is fixed, within 5 %."""
    rng, sizes = np.random.default_rng(0), (400_000, 100_000)
    weights = [np.arange(1, n + 1) ** -skew for n in sizes]
    ids = [rng.choice(n, 600_000, p=w / w.sum()) for n, w in zip(sizes, weights, strict=True)]
    pages = np.stack([ids[0] // PER_PAGE, (sizes[0] + ids[1]) // PER_PAGE], 1).reshape(-1)
    counts = [np.round(1e9 * w / w.sum()).astype(np.int64) for w in weights]
    room = sum(sizes) // PER_PAGE // times
    of_page = np.add.reduceat(np.concatenate(counts), np.arange(0, sum(sizes), PER_PAGE))
    hot = set(np.argsort(-of_page)[: int(HOT * room)].tolist())
    assert missed(counts, ROW, room * mmap.PAGESIZE) == pytest.approx(played(pages.tolist(), hot, room), rel=0.05)


def test_nothing_misses_where_all_fits():
    counts = [np.array([5, 3, 1]), np.array([], np.int64)]
    assert missed(counts, ROW, mmap.PAGESIZE) == 0.0
    assert missed(counts, mmap.PAGESIZE, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("row", [520, mmap.PAGESIZE, 3 * mmap.PAGESIZE])
def test_of_rows_that_are_used_alike_those_miss_for_which_there_is_no_room(row):
    assert missed([np.full(70_000, 9)], row, 0.3 * 70_000 * row) == pytest.approx(0.7, abs=1e-3)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("most", [0, 5, 100, 777, 10**6])
def test_hot_rows_are_looked_up_most(servers, most):
    """The first two rows of a table, of missing and of rare tokens, have one count. Many ids occur alike."""
    rng, sizes = np.random.default_rng(0), (900, 40, 3, 300)
    tables = [np.r_[rng.integers(9), np.sort(rng.zipf(1.5, size - 2))[::-1]] for size in sizes]
    placed = place(sizes, servers)
    for server in range(servers):
        parts = placed.parts_of(server)
        found = hot_rows(tables, parts, most)
        assert sum(found) <= most
        if most > 2 * len(parts):
            assert sum(found) == min(most, placed.rows_of(server))
            ids = [np.arange(part.first, sizes[part.table], part.stride) for part in parts]
            often = [tables[part.table][np.maximum(each - 1, 0)] for part, each in zip(parts, ids, strict=True)]
            hot = np.concatenate([c[:n][i[:n] > 1] for c, i, n in zip(often, ids, found, strict=True)])
            cold = np.concatenate([c[n:] for c, n in zip(often, found, strict=True)])
            assert hot.min() >= cold.max(initial=0)


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam", "sgd"])
def test_hot_bytes_are_whole_pages_of_hot_rows(tmp_path, small_data, optimizer):
    (run_file := tmp_path / "run.toml").write_text("")
    config = load(run_file, [f"data.folder={small_data}", f"embedding.optimizer={optimizer}"])
    options, parts = config.over(read_manifest(small_data).features).rows, place((2_000, 70, 900), 1).parts_of(0)
    pages = hot_bytes(options, parts, [1_000, 3, 900])
    is_hot = np.zeros(options.bytes_for(2_970), bool)
    for part, hot in zip(parts, (1_000, 3, 900), strict=True):
        for some in options.bytes_of(slice(part.base, part.base + hot), 2_970):
            is_hot[some] = True
    assert all(each.start % mmap.PAGESIZE == each.stop % mmap.PAGESIZE == 0 < each.stop - each.start for each in pages)
    assert all(is_hot[each].all() for each in pages)
    whole = is_hot[: len(is_hot) // mmap.PAGESIZE * mmap.PAGESIZE].reshape(-1, mmap.PAGESIZE).all(1)
    assert sum(each.stop - each.start for each in pages) == whole.sum() * mmap.PAGESIZE


def test_plan_prints_what_the_vocabulary_says(tmp_path, small_data, disk, monkeypatch):
    """Also that of ids in a range, which are counted in it."""
    data, run_file = Path(shutil.copytree(small_data, tmp_path / "data")), tmp_path / "run.toml"
    run_file.write_text(f"data.folder = '{data}'\nembedding.storage = '{disk}'")
    sizes = read_manifest(data).cardinalities
    unknown = "is not known without counts of all ids"
    assert unknown in plan(load(run_file))
    write_counts(data, [*sizes[:-1], sizes[-1] + 1])  # of other data
    assert unknown in plan(load(run_file))
    write_counts(data, sizes, max_ind_range=9)
    found = occurrences(data, sizes)
    assert found.tables[1][:4].tolist() == [sum(sizes) - sizes[1] - 1, 3, 2, 1]
    assert (found.sizes(), found.sizes(2), found.sizes(3)) == (list(sizes), [4] * 26, [3] * 26)
    assert "no lookup has to read" in plan(load(run_file))
    assert re.search(r"\n  hot rows: at most [\d.]+ MB of that, in /dev/shm\n", plan(load(run_file)))
    monkeypatch.setattr("ssmpi.tools.plan.memory_limit", lambda: 0.0)
    said = "with 0 B of memory left for them 100.00% of the lookups have to read, 26 an example: a disk that reads"
    assert f"{said} 50,000 pages/s allows 1,923 examples/s" in plan(load(run_file))
    (data / "vocabulary.h5").write_bytes(b"no HDF5")
    with pytest.raises(DataError, match=r"vocabulary.h5: cannot be read .*; prepare the data again"):
        plan(load(run_file))
