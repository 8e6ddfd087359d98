"""What a run writes while it goes on: windows and evaluations at the right place in the run, and a picture of them."""

import json
import resource

import pytest
from runs import train_over_threads

from ssmpi import report
from ssmpi.roles.lines import Lines

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


EASGD = ("topology.trainers=2", "topology.embedding_ps=1", "topology.sync_ps=1", "sync.algorithm=easgd")


def test_closing_rounds_are_in_the_result(tmp_path, small_data):
    """No round is due before the end, when every trainer makes one."""
    rate = ("sync.pace=fixed_rate", "sync.every_iterations=1_000_000")
    run = train_over_threads(tmp_path, small_data, *SETTINGS[1:], *EASGD, *rate)
    assert run.result["rounds"] == 2
    assert run.result["sync_gap_trainer"] == run.result["iterations"] / 2


def test_rounds_in_figures(tmp_path, small_data):
    """In every window, and over the whole run in the result; a fragment is a part of a round."""
    rate = ("sync.pace=fixed_rate", "sync.every_iterations=4", "sync.fragments=3", "data.handout=static")
    run = train_over_threads(tmp_path, small_data, *SETTINGS[1:], *EASGD, *rate)
    iterations = [len(run.losses(trainer)) for trainer in range(2)]
    assert run.result["rounds"] == pytest.approx(sum(n // 4 / 3 + 1 for n in iterations))  # the last one is whole
    assert run.result["staleness"] == 0  # in the foreground nobody learns meanwhile
    windows = [line for line in written(run)[0] if "sync_gap_trainer" in line]
    assert windows
    for line in (*windows, run.result):
        assert 0 < line["round_seconds"] < 60
        assert 0 < line["divergence"] < 1
        assert line["sync_gap_thread"] == line["sync_gap_trainer"] > 0


def test_lines_that_the_disk_does_not_take_wait_until_it_does(tmp_path):
    """The kernel refuses what goes beyond a limit of the process, in the middle of a line, as it does on a full disk."""
    lines, path = Lines(tmp_path / "lines", known=0), tmp_path / "lines"
    lines.write("first")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        lines.write("second line")
        lines.write("third")
        assert path.read_text() == "first\nseco"
        assert lines.size == len("first\nsecond line\nthird\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    lines.write("fourth")
    lines.close()
    assert path.read_text() == "first\nsecond line\nthird\nfourth\n"
    again = Lines(path, known=6)
    again.write("other")
    again.close()
    assert path.read_text() == "first\nother\n"
