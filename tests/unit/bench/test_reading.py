"""How fast the reader is: over every row, by the bytes that shards hold."""

import time
from types import SimpleNamespace

import h5py
import pytest
from datasets import make_lists_dataset

from ssmpi.bench.harness.windows import Timing
from ssmpi.bench.throughput import reading, render
from ssmpi.bench.throughput.turns import Harness
from ssmpi.data.schema import read_manifest


@pytest.fixture
def harness(tmp_path):
    data = make_lists_dataset(tmp_path / "data", 1_500)
    (tmp_path / "run.toml").write_text(f'data.folder = "{data}"\n')
    jobs = SimpleNamespace(run="no job is started")
    return Harness(tmp_path / "run.toml", jobs, (50, 200, 100), 1, Timing(0.0, 0.0, 3), False, rounds=2)


def test_every_row_counts_with_the_bytes_of_its_columns(harness, tmp_path, monkeypatch):
    """A turn reads all of them; the median of the turns' rates counts."""
    rates = iter(range(12))
    monkeypatch.setattr(reading, "rate", lambda work, seconds: work() + next(rates))
    monkeypatch.setattr(reading, "in_fresh_process", lambda body, *arguments: body(*arguments))
    found, size = reading.reading(harness), 0
    for entry in read_manifest(tmp_path / "data").split("train").shards:
        with h5py.File(tmp_path / "data" / entry.file) as shard:
            size += sum(column[()].nbytes for column in shard.values())
    assert list(found) == ["batch 50", "batch 200"]
    assert [each["rows"] for each in found.values()] == [1_502.5, 1_508.5]
    for each in found.values():
        assert each["row_bytes"] == size / 1_500
        assert each["bytes"] == pytest.approx(each["rows"] * size / 1_500)


def test_a_rate_is_work_by_the_threads_own_time(monkeypatch):
    """Repeated until it has taken so long."""
    now = [5.0]

    def work():
        now[0] += 0.3
        return 12

    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    assert reading.rate(work, 1.0) == pytest.approx(40)
    assert now[0] == pytest.approx(5 + 4 * 0.3)


def test_it_is_printed_in_rows_and_gigabytes():
    text = render.reader({"batch 128": {"rows": 1_234_567.0, "bytes": 1.1251e9, "row_bytes": 911.4}})
    assert text.splitlines()[1] == "  batch 128: 1,234,567 rows, 1.13 GB; 911 bytes a row"
