"""``evaluate.progressive``: every row is scored once, by the common model, before anybody is trained on it."""

import itertools
import json
import math

import h5py
import numpy as np
import pytest
from datasets import FEW, FEW_CARDINALITIES, make_dataset
from hypothesis import given
from hypothesis import strategies as st
from runs import train_over_threads

from ssmpi.data.block_dispatcher import block_order, part_of
from ssmpi.data.reader import DataOptions
from ssmpi.model.replica import ThreadModel
from ssmpi.runtime.quality import Quality
from ssmpi.tools.report import table
from ssmpi.trainer import build_trainer, trainer
from ssmpi.trainer.metrics import results
from ssmpi.trainer.metrics.results import plain

PARTS = (
    "evaluate.progressive=true", "evaluate.per_pass=3", "evaluate.split=none", "evaluate.batch_size=50",
    "data.batch_size=50",
)  # fmt: skip
STILL = ("embedding.rate=0", "dense.rate=0")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("few"), 1_200, shard=500, cardinalities=FEW_CARDINALITIES, features=FEW)


@pytest.fixture
def seen(monkeypatch):
    """Rows in the order in which they are scored and trained on: (what, row)."""
    found, score, step = [], ThreadModel.score, ThreadModel.forward_backward

    def scoring(model, dense, rows):
        found.extend(("scored", row.tobytes()) for row in dense)
        return score(model, dense, rows)

    def training(model, dense, *others):
        found.extend(("trained", row.tobytes()) for row in dense)
        return step(model, dense, *others)

    monkeypatch.setattr(ThreadModel, "score", scoring)
    monkeypatch.setattr(ThreadModel, "forward_backward", training)
    monkeypatch.setattr(
        build_trainer, "compile_kernels", lambda *_, **__: None
    )  # its made-up batch is no part of the data
    return found


def rows_in_order(data):
    for path in sorted((data / "train").glob("*.h5")):
        with h5py.File(path) as shard:
            yield from (row.tobytes() for row in shard["dense"][:])


def windows(run):
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "evaluation" and line["split"] == "progressive"]


@pytest.mark.parametrize("ranks", [(), ("topology.trainers=2", "topology.threads=2")], ids=["one thread", "2 x 2"])
def test_each_part_is_scored_before_it_is_trained_on(tmp_path, data, seen, ranks):
    """In the order of the rows, although they are shuffled within a part; in the first pass alone."""
    run = train_over_threads(tmp_path, data, *PARTS, *ranks, "data.passes=2", "evaluate.final=none")
    groups = [(what, {row for _, row in rows}) for what, rows in itertools.groupby(seen, key=lambda each: each[0])]
    assert [what for what, _ in groups] == ["scored", "trained"] * 3  # and the second pass follows the last
    place = {row: k for k, row in enumerate(rows_in_order(data))}
    assert len(place) == 1_200
    ends = [0]
    for (_, scored), (_, trained) in zip(groups[::2], groups[1::2], strict=True):
        ends.append(max(map(place.get, scored)) + 1)
        assert {place[row] for row in scored} == set(range(*ends[-2:]))
        assert scored <= trained
    assert ends[-1] == 1_200
    assert [line["rows"] for line in windows(run)] == np.diff(ends).tolist()
    assert [line["examples"] for line in windows(run)] == ends[:-1]
    assert sum(what == "scored" for what, _ in seen) == 1_200
    assert sum(what == "trained" for what, _ in seen) == 2_400


def test_figures_of_the_whole_run_are_those_of_all_rows(tmp_path, data):
    """Of a model that stands still: those that its training steps give."""
    run = train_over_threads(tmp_path, data, *PARTS, *STILL)
    found, result = run.result["evaluations"]["progressive"]["whole"], run.result
    assert (found["rows"], found["parts"]) == (1_200, 3)
    for name in ("log_loss", "ne", "accuracy", "calibration"):
        assert found[name] == pytest.approx(result[f"progressive_{name}"], rel=1e-5), name
    lines = windows(run)
    weights = [line["rows"] for line in lines]
    assert found["auc"] == pytest.approx(np.average([line["auc"] for line in lines], weights=weights), rel=1e-12)
    assert result["seconds"] > 0
    assert lines[0]["seconds"] == 0.0
    assert f"{found['ne']:.5f}" in table(run.folder, None, None)


def test_stopped_anywhere_every_part_is_scored_once(tmp_path, data, monkeypatch):
    whole, stop = train_over_threads(tmp_path / "whole", data, *PARTS), {"now": False}
    count, step = itertools.count(1), ThreadModel.forward_backward

    def training(model, dense, *others):
        stop["now"] = next(count) in stop.get("at", ())
        return step(model, dense, *others)

    monkeypatch.setattr(ThreadModel, "forward_backward", training)
    monkeypatch.setattr(build_trainer, "compile_kernels", lambda *_, **__: None)
    monkeypatch.setattr(trainer, "stop_requested", lambda: stop["now"])
    for number, at in enumerate([{1}, {3, 4}, {8}, {30}, ()]):
        count, stop = itertools.count(1), {"now": False, "at": at}
        run = train_over_threads(tmp_path / "cut", data, *PARTS, resume=number > 0)
    assert run.result["status"] == "complete"
    assert run.result["evaluations"]["progressive"] == whole.result["evaluations"]["progressive"]
    drop = ("seconds",)
    found, expected = ([{k: v for k, v in each.items() if k not in drop} for each in windows(r)] for r in (run, whole))
    assert found == expected


def test_a_stop_while_scoring_scores_the_part_again(tmp_path, data, monkeypatch):
    whole = train_over_threads(tmp_path / "whole", data, *PARTS)
    batches, score, stop = itertools.count(1), ThreadModel.score, {"now": False}

    def scoring(model, dense, rows):
        stop["now"] |= next(batches) == 10  # of the second part
        return score(model, dense, rows)

    with monkeypatch.context() as patch:
        patch.setattr(ThreadModel, "score", scoring)
        patch.setattr(trainer, "stop_requested", lambda: stop["now"])
        stopped = train_over_threads(tmp_path / "cut", data, *PARTS)
    assert stopped.result["status"] == "stopped"
    assert stopped.result["evaluations"]["progressive"]["whole"]["parts"] == 1
    run = train_over_threads(tmp_path / "cut", data, *PARTS, resume=True)
    assert run.result["evaluations"]["progressive"] == whole.result["evaluations"]["progressive"]


@given(blocks=st.integers(0, 60), parts=st.integers(1, 12), seed=st.integers(0, 3))
def test_parts_follow_each_other(blocks, parts, seed):
    order = block_order(DataOptions("d"), seed, 0, blocks, parts)
    spans = [part_of(blocks, place, parts) for place in range(parts)]
    assert [k for span in spans for k in span] == list(range(blocks))
    if parts > 1:
        assert [{order[k] for k in span} for span in spans] == [set(span) for span in spans]
    assert block_order(DataOptions("d", shuffle=False), seed, 0, blocks, parts) == list(range(blocks))


@given(st.lists(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=1, max_size=9), min_size=1, max_size=5))
def test_windows_add_up(windows):
    """Through JSON, as they are kept in checkpoints."""
    whole, found = Quality(), None
    for part, rows in enumerate(windows):
        quality = Quality()
        quality.add(*(np.array(column, np.float32) for column in zip(*rows, strict=True)))
        whole.merge(quality)
        assert not results.is_scored(found, part)
        found = json.loads(json.dumps(plain(results.after_part(found, part, quality, {}))))
        assert results.is_scored(found, part)
    expected = whole.compute()
    for name in ("log_loss", "accuracy", "ne", "calibration"):
        value = math.nan if found["whole"][name] is None else found["whole"][name]
        assert value == pytest.approx(expected[name], rel=1e-9, nan_ok=True)
    assert found["whole"]["rows"] == sum(map(len, windows))
