"""A trainer that does less than half of what the others do for a minute is named; pauses and ends of parts count for
nobody.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ssmpi.runtime.quality import Quality
from ssmpi.runtime.topology import Topology
from ssmpi.runtime.traffic import COUNTED
from ssmpi.trainer.metrics import metric_logger
from ssmpi.trainer.metrics.metric_logger import MetricLogger
from ssmpi.trainer.metrics.trainer_report import PaceWatch, TrainerReport, slow_trainers


@pytest.mark.parametrize(
    ("examples", "slow"),
    [
        ([100], []),
        ([100, 51], []),
        ([100, 49], [1]),
        ([0, 0], []),
        ([100, 100, 49, 100], [2]),
        ([10, 10, 100, 100, 100], [0, 1]),
        ([10, 300, 290, 20], [0, 3]),
    ],
)
def test_the_rule(examples, slow):
    assert list(slow_trainers(dict(enumerate(examples)))) == slow


def test_a_minute_is_one_in_which_all_train():
    """Of trainer 1 at a third of the pace; 100 s of evaluation, and 100 s in which trainer 0 has nothing left to do."""
    watch, found = PaceWatch([0, 1]), {}
    watch.begin(0.0)
    for second in range(1, 31):
        assert not watch.report(1, 10 * second, second, finished=False)
        assert not watch.report(0, 30 * second, second, finished=False)
    assert not watch.report(0, 900, 30.0, finished=True)
    assert not watch.report(1, 1_300, 130.0, finished=True)
    watch.begin(230.0)
    assert not watch.report(1, 1_590, 259.0, finished=False)
    assert not watch.report(0, 1_800, 259.9, finished=False)
    found = watch.report(1, 1_600, 260.0, finished=False)
    assert found == {0: 1_800, 1: 600}
    assert not watch.report(1, 1_600, 261.0, finished=False)  # said once, while it stays slow
    watch.report(0, 3_600, 319.0, finished=False)
    assert not watch.report(1, 1_900, 320.0, finished=False)


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(metric_logger, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def report(examples, iterations, *, finished=False):
    quality = Quality()
    quality.sums[:2] = examples, examples / 2
    numbers = dict.fromkeys(TrainerReport._fields, 0.0)
    numbers |= {"examples": examples, "iterations": iterations, "finished": float(finished)}
    arrays = {"traffic": np.zeros(len(COUNTED)), "sums": quality.sums, "histogram": quality.histogram}
    return TrainerReport(**numbers | arrays)


def windows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_windows_have_rates_by_trainer_without_pauses_and_a_slow_one_is_named(tmp_path, clock, monkeypatch):
    said = []
    monkeypatch.setattr(metric_logger.log, "warning", said.append)
    logbook = MetricLogger(tmp_path, Topology(trainers=2), 10**6, 1_000.0)
    logbook.start_clock(["here", "there"])
    logbook.part_begins()
    clock.now += 10
    logbook.gathered(0, report(20_000, 200))
    logbook.gathered(1, report(4_000, 40, finished=True))
    logbook.part_ends()
    clock.now += 20
    logbook.window()  # as before an evaluation
    clock.now += 80
    logbook.part_begins()
    clock.now += 49
    logbook.gathered(1, report(24_000, 240))
    clock.now += 1
    logbook.gathered(0, report(120_000, 1_200))
    logbook.close()
    for line in windows(tmp_path):
        assert line["eps"] == 2_400
        assert line["eps_by_trainer"] == [2_000, 400]
        assert line["steps_by_trainer"] == [20, 4]
    (text,) = [text for text in said if "slow" in text]
    assert "trainer 1 on host there is slow: 24,000 examples in a minute of training, and the median of" in text
    assert "of the others is 120,000" in text


def test_a_short_run_has_windows_enough_for_a_curve(tmp_path, clock):
    logbook = MetricLogger(tmp_path, Topology(), 1_000, 5.0)
    logbook.start_clock()
    for examples in range(10, 1_001, 10):
        clock.now += 0.01
        logbook.gathered(0, report(examples, examples))
    logbook.close()
    assert len(windows(tmp_path)) == 20
