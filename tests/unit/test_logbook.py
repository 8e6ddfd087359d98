"""What a run writes while it goes on: windows and evaluations at the right place in the run, and a picture of them."""

import json

import pytest
from runs import train_over_threads

from ssmpi import report

SETTINGS = ("topology.embedding_ps=0", "run.log_seconds=0.01")


def written(run):
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"], [line for line in lines if line["kind"] == "evaluation"]


def test_an_evaluation_stands_where_it_was_made(tmp_path, small_data):
    run = train_over_threads(tmp_path, small_data, *SETTINGS, "evaluate.per_pass=3", "evaluate.replica=true")
    windows, evaluations = written(run)
    total = run.result["examples"]
    places = [line["examples"] for line in evaluations]
    assert places == sorted(places)
    assert 0 < places[0] < places[1] < places[2] == total
    assert [line["split"] for line in evaluations] == ["validation"] * 3 + ["test"] * 2
    assert [line["weights"] for line in evaluations] == ["model"] * 4 + ["replica 0"]
    assert {line["rows"] for line in evaluations} == {600.0}
    assert windows[-1]["examples"] == total
    last, best = (run.result["evaluations"]["validation"][name] for name in ("last", "best"))
    assert last["ne"] == pytest.approx(evaluations[2]["ne"])
    assert best["ne"] == pytest.approx(min(line["ne"] for line in evaluations[:3]))


def test_one_trainer_alone_scores_like_its_own_replica(tmp_path, small_data):
    run = train_over_threads(tmp_path, small_data, *SETTINGS, "evaluate.replica=true", "sync.algorithm=none")
    model, replica = (run.result["evaluations"][name]["last"] for name in ("test", "test (replica 0)"))
    assert model["log_loss"] == replica["log_loss"]


def test_a_run_can_be_drawn(tmp_path, small_data):
    run = train_over_threads(tmp_path, small_data, *SETTINGS)
    picture = report.plot(run.folder)
    assert picture.read_bytes().startswith(b"\x89PNG")
