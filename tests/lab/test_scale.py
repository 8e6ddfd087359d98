"""The cost of a job's ranks is read from what they noted."""

import time
from datetime import UTC, datetime

import pytest
from laboratory import lab

from jobs.lab import restart_time, scale
from jobs.lab.options import ScaleOptions
from ssmpi import config
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.runtime.host.clock import process_age
from ssmpi.state.recovery import run_record

LOG = """2026-11-21 17:20:03,250 h1 trainer 0 | 8 ranks on 2 hosts
2026-11-21 17:20:05,750 h1 trainer 0 | training starts
2026-11-21 17:20:09,000 h1 trainer 0 | complete: 10 examples
"""


def test_moments_are_read_to_the_millisecond(tmp_path):
    (tmp_path / "a.log").write_text(LOG)
    first, starts, done = (scale.moment(tmp_path / "a.log", words) for words in ("", "training starts", "complete:"))
    assert (starts - first, done - first) == pytest.approx((2.5, 5.75))
    with pytest.raises(DataError, match="no line that begins with 'stopped'"):
        scale.moment(tmp_path / "a.log", "stopped")


@pytest.mark.parametrize("ranks", [4, 5, 8, 32, 64, 100])
def test_all_roles_are_there(ranks):
    shape = scale.topology(ranks)
    assert shape.size == ranks
    assert min(shape.counts.values()) >= 1


def test_a_jobs_settings_are_its_roles(tmp_path):
    made = config.load(*scale.fresh(scale.topology(32), tmp_path / "data", tmp_path / "run"))
    assert made.topology == scale.topology(32)


def test_nonsense_is_refused():
    with pytest.raises(DataError, match="at least 4"):
        scale.topology(3)


def test_nonsense_is_refused_before_the_first_job(tmp_path):
    with pytest.raises(DataError, match="at least 4"):
        scale.measure(ScaleOptions(ranks=(8, 3), folder=tmp_path / "made"))
    with pytest.raises(SettingsError, match="--kills must be at least 0"):
        scale.measure(ScaleOptions(ranks=(8,), folder=tmp_path / "made", kills=-1))
    assert not (tmp_path / "made").exists()


def test_the_search_for_a_rank_to_kill_is_no_part_of_its_detection(tmp_path, monkeypatch):
    """It reads all of /proc."""
    lines, clock = iter(range(9)), Clock()
    run_record.begin_start(tmp_path, "launch")

    def search(run_file):
        clock.sleep(0.3)
        return [4711]

    def kill(rank, number):
        at = datetime.fromtimestamp(clock.now, UTC).isoformat()
        run_record.add(tmp_path, {"at": at, "seconds": {"ranks": 0.0, "process": 0.0, "restore": 0.0}})

    monkeypatch.setattr(restart_time, "time", clock)
    monkeypatch.setattr(restart_time, "ranks_of", search)
    monkeypatch.setattr(restart_time, "_trained", lambda run: next(lines))
    monkeypatch.setattr(restart_time.os, "kill", kill)
    found = restart_time._one(tmp_path, tmp_path / "run.toml", lambda happened, what: happened())
    assert found.detection == 0


class Clock:
    """Time that passes only in sleep."""

    now = 1e9

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_a_restart_is_the_sum_of_its_parts():
    times = [
        restart_time.RestartTime(detection=0.1, end=0.2, spawn=0.3, join=k, maps=1.0, batch=0.4)
        for k in (1.0, 9.0, 3.0)
    ]
    assert times[0].whole == pytest.approx(3.0)
    shown = restart_time.table(times)
    assert "of 3: detection 0.10 (0.10)" in shown
    assert "join 3.00 (9.00)" in shown
    assert "whole 5.00 (11.00)" in shown


def test_who_kills_a_rank_must_find_one(tmp_path):
    with pytest.raises(DataError, match="no rank trains by it"):
        restart_time.ranks_of(tmp_path / "run.toml")


def test_a_process_knows_its_age():
    times = [time.monotonic(), process_age(), time.monotonic()]
    time.sleep(0.05)
    times += [time.monotonic(), process_age(), time.monotonic()]
    earliest, before, began, ended, after, latest = times
    assert ended - began - 0.02 <= after - before <= latest - earliest + 0.02


@pytest.mark.soak
def test_restarts_are_measured(tmp_path):
    finished = lab("scale", "--ranks", "4", "--kills", "2", "--folder", tmp_path, timeout=300).check()
    (line,) = [line for line in finished.out.splitlines() if line.startswith("seconds from SIGKILL")]
    assert "median (most) of 2: detection" in line
    found = (tmp_path / "restarts.json").read_text()
    assert found.count('"join"') == 2
