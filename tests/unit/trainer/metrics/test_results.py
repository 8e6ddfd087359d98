"""How a run ended, and what counts as time of training."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from faults import no_room

from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.quality import BINS, Quality
from ssmpi.runtime.run_options import RunOptions
from ssmpi.runtime.topology import Topology
from ssmpi.runtime.traffic import COUNTED, LINKS
from ssmpi.state.checkpoint import store
from ssmpi.tools import inspect
from ssmpi.trainer.metrics import metric_logger
from ssmpi.trainer.metrics.metric_logger import MetricLogger
from ssmpi.trainer.metrics.results import RunResults, Scored, plain
from ssmpi.trainer.metrics.trainer_report import COUNTERS, TrainerReport


@pytest.fixture
def results(tmp_path):
    return RunResults(tmp_path, RunOptions(tensorboard=False), Topology(), expected=10)


def test_a_run_that_lost_rows_is_not_complete(results, tmp_path):
    with pytest.raises(AssertionError, match=r"trained on 0\.0 examples of 10"):
        results.finish(stopped=False)
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "incomplete"


def test_a_run_whose_evaluations_have_no_ne_resumes_and_is_whole(results, tmp_path, monkeypatch):
    """Of labels that are all the same NE is NaN, which JSON does not have: a checkpoint says None."""
    same = Quality()
    same.add(np.zeros(3, np.float32), np.zeros(3, np.float32))
    unknown = {"rows": 3.0, **same.compute()}
    known = {**unknown, "ne": 0.9}
    results.evaluated("validation", Scored(np.zeros(1), unknown, 0.0))
    saved = json.loads(json.dumps(plain(results.evaluations)))
    assert saved["validation"]["best"]["ne"] is None
    earlier = SimpleNamespace(state={"evaluations": saved}, scored=list)
    resumed = RunResults(tmp_path, RunOptions(tensorboard=False), Topology(), expected=10, saved=earlier)
    resumed.evaluated("validation", Scored(np.zeros(1), unknown, 0.0))
    assert resumed.evaluations["validation"]["best"]["ne"] is None
    resumed.evaluated("validation", Scored(np.zeros(1), known, 0.0))
    assert resumed.evaluations["validation"]["best"]["ne"] == 0.9

    ranks = {"trainers": 1, "threads": 1, "embedding_ps": 1, "sync_ps": 0}
    identity = {"evaluate.per_pass": 1, "run.seed": 1}
    state = {"examples": 5, "expected_examples": 10, "topology": ranks, "position": {"part": 0}, "algorithm": "none"}
    state |= {"identity": identity, "evaluations": plain({"validation": {"last": unknown}})}
    monkeypatch.setattr(store, "read_manifest", lambda _: SimpleNamespace(files=[], bytes=0, state=state))
    assert inspect.damage_in(tmp_path, checksums=False) == ""
    assert "validation NE not known" in inspect.contents(tmp_path)


def report_of(traffic):
    """A trainer's report of one example and some traffic."""
    sums = np.array([1.0, 0.0, 0.7, 0.5, 1.0])
    return TrainerReport(*np.zeros(COUNTERS), np.array(traffic), sums, np.zeros((2, BINS), np.int64))


def test_traffic_adds_up_over_trainers_windows_and_jobs(tmp_path):
    """A job that goes on from another's numbers, as a checkpoint or a killed start has left them."""
    first = RunResults(tmp_path, RunOptions(tensorboard=False), Topology(trainers=2), expected=1_000)
    one, two = np.arange(len(COUNTED)) + 1.0, 100 * (np.arange(len(COUNTED)) + 1.0)
    first.logbook.gathered(0, report_of(one))
    first.logbook.window()
    first.logbook.gathered(1, report_of(two))
    first.logbook.gathered(0, report_of(2 * one))
    numbers, _ = first.logbook.state()
    assert numbers["bytes"] == (tmp_path / "metrics.jsonl").stat().st_size  # not what has travelled
    earlier = SimpleNamespace(state={"logbook": json.loads(json.dumps(numbers))}, scored=list)
    second = RunResults(tmp_path, RunOptions(tensorboard=False), Topology(trainers=2), expected=1_000, saved=earlier)
    second.logbook.gathered(1, report_of(one))
    second.finish(stopped=True)
    found = json.loads((tmp_path / "result.json").read_text())
    assert (found["examples"], found["job_examples"]) == (3.0, 1.0)
    total = dict(zip(COUNTED, (3 * one + two).tolist(), strict=True))
    assert found["bytes"] == {
        **{link: total[f"bytes_{link}"] for link in LINKS},
        "rows_in_place": total["rows_in_place"],
    }
    assert found["messages"] == {link: total[f"messages_{link}"] for link in LINKS}
    assert found["entries"] == {"group": total["entries_group"]}
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["bytes_embedding_push"] for line in lines] == [2.0, 202.0, 2.0]
    rows = COUNTED.index("rows_in_place")
    assert [line["rows_in_place"] for line in lines] == [one[rows], one[rows] + two[rows], one[rows]]
    assert lines[0]["density"] == one[-1] / one[-2]
    assert found["density"] == total["entries_sent"] / total["entries"]


def test_the_gap_of_a_group_counts_all_lanes_of_a_replica(tmp_path):
    """Two replicas of two members; each member counts its own iterations, and the rounds of its parameters."""
    own = report_of(np.zeros(len(COUNTED)))._replace(iterations=30.0, rounds=5.0, staleness=10.0)
    for homes, gap_thread in (("all", 6.0), ("first", 12.0)):
        topology = Topology(4, threads=1, group=2, homes=homes)
        (tmp_path / homes).mkdir()
        logbook = MetricLogger(tmp_path / homes, topology, 1, 5.0)
        for trainer in range(4):
            logbook.gathered(trainer, own)
        found = logbook.sync()
        assert (found["sync_gap_trainer"], found["sync_gap_thread"], found["staleness"]) == (12.0, gap_thread, 2.0)
        logbook.close()


def test_what_training_stood_still_for_is_no_time_of_training(results, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(metric_logger, "time", SimpleNamespace(monotonic=lambda: now[0]))
    results.logbook.start_clock()
    now[0] += 60.0
    results.logbook.pause(20.0)
    assert results.logbook.totals()["seconds"] == pytest.approx(40.0)


def test_a_stop_whose_result_cannot_be_written_is_a_stop(tmp_path, inject, caplog):
    """Its checkpoint is complete; it ended with 2, and was not requeued. A run that is done needs its result."""
    inject(atomic_file, "write", no_room)
    made = [RunResults(tmp_path, RunOptions(tensorboard=False), Topology(), expected=0) for _ in range(2)]
    made[0].finish(stopped=True)
    assert "error: no result.json ([Errno 28]" in caplog.text
    with pytest.raises(OSError, match="No space"):
        made[1].finish(stopped=False)
