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
from ssmpi.tools.plan import describe as plan
from ssmpi.tools.stored_rows import missed, occurrences

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


ABOUT = {"fitted_rows": 10, "max_ind_range": 0}


def write_vocabulary(data, about, names):
    with h5py.File(data / "vocabulary.h5", "w") as file:
        file.attrs["about"] = json.dumps(about)
        for name in names:
            file[f"{name}/count"] = [4, 2, 1]


def test_plan_prints_what_the_vocabulary_says(tmp_path, small_data, disk, monkeypatch):
    data, run_file = Path(shutil.copytree(small_data, tmp_path / "data")), tmp_path / "run.toml"
    run_file.write_text(f"data.folder = '{data}'\nembedding.storage = '{disk}'")
    names = read_manifest(data).features.sparse
    unknown = "are not known without counts of all ids"
    assert unknown in plan(load(run_file))
    for other in ({"max_ind_range": 9}, {"hashed": {"C1": 3}}, {"keyed": ["C1"]}):
        write_vocabulary(data, ABOUT | other, names)
        assert unknown in plan(load(run_file))
    write_vocabulary(data, ABOUT, names)
    assert [each.tolist() for each in occurrences(data)[0]] == [[3, 4, 2, 1]] * 26
    assert "all of them fit in the" in plan(load(run_file))
    monkeypatch.setattr("ssmpi.tools.plan.memory_limit", lambda: 0.0)
    said = "with 0 B of memory left for them 100.00% of the lookups have to read, 26 an example: at most 385 examples/s"
    assert said in plan(load(run_file))
    (data / "vocabulary.h5").write_bytes(b"no HDF5")
    with pytest.raises(DataError, match=r"vocabulary.h5: cannot be read .*; prepare the data again"):
        plan(load(run_file))
