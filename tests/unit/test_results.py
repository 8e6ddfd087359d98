"""How a run ended, and what counts as time of training."""

import json
from types import SimpleNamespace

import pytest

from ssmpi.config import Run
from ssmpi.core.topology import Topology
from ssmpi.report import metric_logger
from ssmpi.report.results import Results


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path, Run(tensorboard=False), Topology(), expected=10)


def test_a_run_that_lost_rows_is_not_complete(results, tmp_path):
    with pytest.raises(AssertionError, match=r"trained on 0\.0 examples of 10"):
        results.finish(stopped=False)
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "incomplete"


def test_what_training_stood_still_for_is_no_time_of_training(results, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(metric_logger, "time", SimpleNamespace(monotonic=lambda: now[0]))
    results.logbook.start_clock()
    now[0] += 60.0
    results.logbook.pause(20.0)
    assert results.logbook.totals()["seconds"] == pytest.approx(40.0)
