"""The forecast of lookups that miss memory, beside a cache that is played out."""

import json
import mmap
import shutil
from collections import OrderedDict
from pathlib import Path

import h5py
import numpy as np
import pytest

from ssmpi.config import load
from ssmpi.data.schema import read_manifest
from ssmpi.runtime.errors import DataError
from ssmpi.state.stored_rows import missed, occurrences
from ssmpi.tools.plan import describe as plan

ROW = 64  # bytes: so many rows a page
PER_PAGE = mmap.PAGESIZE // ROW


def played(pages, room):
    """The share of misses in the second half of these lookups of pages, of which the last ``room`` stay."""
    cache, misses = OrderedDict(), 0
    for k, page in enumerate(pages):
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
    pages = np.stack([ids[0] // PER_PAGE, sizes[0] + ids[1] // PER_PAGE], 1).reshape(-1)
    counts = [np.round(1e9 * w / w.sum()).astype(np.int64) for w in weights]
    room = sum(sizes) // PER_PAGE // times
    assert missed(counts, ROW, room * mmap.PAGESIZE) == pytest.approx(played(pages.tolist(), room), rel=0.05)


def test_nothing_misses_where_all_fits():
    counts = [np.array([5, 3, 1]), np.array([], np.int64)]
    assert missed(counts, ROW, mmap.PAGESIZE) == 0.0
    assert missed(counts, mmap.PAGESIZE, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("row", [520, mmap.PAGESIZE, 3 * mmap.PAGESIZE])
def test_of_rows_that_are_used_alike_those_miss_for_which_there_is_no_room(row):
    assert missed([np.full(70_000, 9)], row, 0.3 * 70_000 * row) == pytest.approx(0.7, abs=1e-3)


def write_vocabulary(data, sizes, **more):
    """Of Criteo's features, whose tokens occur three times, twice and then once each, in as many rows as all have."""
    with h5py.File(data / "vocabulary.h5", "w") as file:
        file.attrs["about"] = json.dumps({"fitted_rows": sum(sizes), **more})
        for n, size in enumerate(sizes):
            file[f"C{n + 1}/count"] = [3, 2, *[1] * (size - 4)]


def test_plan_prints_what_the_vocabulary_says(tmp_path, small_data, disk, monkeypatch):
    """Also that of ids in a range, which are counted in it."""
    data, run_file = Path(shutil.copytree(small_data, tmp_path / "data")), tmp_path / "run.toml"
    run_file.write_text(f"data.folder = '{data}'\nembedding.storage = '{disk}'")
    sizes = read_manifest(data).cardinalities
    unknown = "is not known without counts of all ids"
    assert unknown in plan(load(run_file))
    write_vocabulary(data, [*sizes[:-1], sizes[-1] + 1])  # of other data
    assert unknown in plan(load(run_file))
    write_vocabulary(data, sizes, max_ind_range=9)
    found = occurrences(data, sizes)
    assert found.tables[1][:4].tolist() == [sum(sizes) - sizes[1] - 1, 3, 2, 1]
    assert (found.sizes(), found.sizes(2), found.sizes(3)) == (list(sizes), [4] * 26, [3] * 26)
    assert "no lookup has to read" in plan(load(run_file))
    monkeypatch.setattr("ssmpi.tools.plan.memory_limit", lambda: 0.0)
    said = "with 0 B of memory left for them 100.00% of the lookups have to read, 26 an example: a disk that reads"
    assert f"{said} 50,000 pages/s allows 1,923 examples/s" in plan(load(run_file))
    (data / "vocabulary.h5").write_bytes(b"no HDF5")
    with pytest.raises(DataError, match=r"vocabulary.h5: cannot be read .*; prepare the data again"):
        plan(load(run_file))
