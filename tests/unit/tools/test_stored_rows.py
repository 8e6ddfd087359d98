"""The forecast of lookups that miss memory, beside a cache that is played out."""

import mmap
from collections import OrderedDict

import h5py
import numpy as np
import pytest

from ssmpi.config import load
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


def test_plan_prints_it(tmp_path, small_data, disk, monkeypatch):
    run_file = tmp_path / "run.toml"
    run_file.write_text(f"data.folder = '{small_data}'\nembedding.storage = '{disk}'")
    assert "are not known without counts in" in plan(load(run_file))
    with h5py.File(tmp_path / "vocabulary.h5", "w") as file:
        file["C1/count"], file["C2/token"] = [4, 2, 1], np.arange(3)
        file.attrs["about"] = '{"fitted_rows": 10}'
    assert [each.tolist() for each in occurrences(tmp_path)] == [[3, 4, 2, 1]]
    monkeypatch.setattr("ssmpi.tools.stored_rows.occurrences", lambda _: [np.full(6400, 2)])
    monkeypatch.setattr("ssmpi.tools.plan.memory_limit", lambda: 0.0)
    said = "with 0 B of memory left for them 100.00% of the lookups have to read, 26 an example: at most 385 examples/s"
    assert said in plan(load(run_file))
