"""Which model is kept and when training ends early: the rule by hand, and whole runs that overfit, stopped and gone on
with.
"""

import json
import math
import shutil
import time

import numpy as np
import pytest
from datasets import make_dataset
from faults import broken_disk, no_room
from ranks import over_threads
from runs import train_over_threads, write_run_file

from ssmpi.config import load
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.run_options import EvaluateOptions
from ssmpi.state import run_folder as run_folder
from ssmpi.state.checkpoint import disk, model_files
from ssmpi.state.checkpoint.manager import CheckpointManager
from ssmpi.state.checkpoint.store import Store, read_manifest
from ssmpi.tools.score import open_run
from ssmpi.trainer import trainer
from ssmpi.trainer.evaluate import Evaluator, Scorer
from ssmpi.trainer.model_selection import PATIENCE, ModelSelection, SelectionState

# a few rows, learned by heart: the validation NE falls for three passes, then rises
OVERFIT = (
    "data.batch_size=50", "data.passes=6", "embedding.rate=0.05", "dense.rate=0.005", "topology.embedding_ps=2",
    "evaluate.keep=best", "checkpoint.every_minutes=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """1,000 rows to train on, 100 to validate and 100 to test."""
    return make_dataset(tmp_path_factory.mktemp("few"), rows=1_000, shard=400)


SAVING = 0.6


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory, few):
    """A run of six passes that keeps its best model, each of which takes SAVING seconds to save."""
    save_best = CheckpointManager.save_best

    def slowly(*arguments):
        time.sleep(SAVING)
        save_best(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointManager, "save_best", slowly)
        return train_over_threads(tmp_path_factory.mktemp("overfitted"), few, *OVERFIT)


def standing(*figures, min_gain=0.0):
    """After evaluations of NE."""
    found = SelectionState("validation")
    for ne in figures:
        found = found.after(ne, min_gain)
    return found


def evaluated(run, split="validation"):
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "evaluation" and line["split"] == split]


@pytest.mark.parametrize(
    ("figures", "min_gain", "without"),
    [
        ([0.9], 0.0, 0),
        ([0.9, 0.8, 0.7], 0.0, 0),
        ([0.9, 0.8, 0.81, 0.805], 0.0, 2),
        ([0.9, 0.8, 0.81, 0.79], 0.0, 0),
        ([0.9, 0.895, 0.885], 0.01, 0),  # a gain is counted from the last gain, not from the evaluation before
        ([0.9, 0.895, 0.891], 0.01, 2),
        ([0.9, 0.9], 0.0, 1),
        ([math.nan, math.nan], 0.0, 2),
        ([math.nan, 0.9], 0.0, 0),
    ],
)
def test_evaluations_without_gain_are_counted(figures, min_gain, without):
    found = standing(*figures, min_gain=min_gain)
    assert found.without_gain == without
    for patience in (1, 2, 3):
        ended = found.ended_by(EvaluateOptions(patience=patience, min_gain=min_gain))
        assert ended == (PATIENCE if without >= patience else "")
    assert not found.ended_by(EvaluateOptions())


def test_a_standing_survives_json():
    """Also that of an earlier version, which had an AUC."""
    found = standing(0.8, math.nan)
    text = json.dumps(vars(found) | {"auc": 0.7}, allow_nan=False)
    assert SelectionState.of_json(json.loads(text)) == found


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("evaluate.keep=first", "not one of last, best"),
        ("evaluate.patience=-1", "evaluate.patience must be at least 0"),
        ("evaluate.min_gain=nan", "evaluate.min_gain = nan is not a finite number"),
        ("evaluate.min_gain=0.1", "set patience too"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(tmp_path, override, said):
    (tmp_path / "run.toml").write_text('[data]\nfolder = "data"')
    with pytest.raises(SettingsError, match=said):
        load(tmp_path / "run.toml", (override,))


@pytest.mark.parametrize("rule", ["evaluate.keep=best", "evaluate.patience=2"])
def test_a_rule_without_evaluations_is_refused(tmp_path, few, rule):
    with pytest.raises(SettingsError, match=r"needs evaluations while training: set evaluate.split"):
        write_run_file(tmp_path, few, rule, "evaluate.split=none")
    config = write_run_file(tmp_path, few, rule, "evaluate.split=validaton")
    with pytest.raises(SettingsError, match=r"no rows in a split 'validaton' .*; there are train, validation, test"):
        run_folder.check(config, config.topology.size)


def test_the_best_model_is_kept_and_both_scores_are(overfitted):
    found = overfitted.result["evaluations"]["validation"]
    series = [line["ne"] for line in evaluated(overfitted)]
    assert len(series) == 6
    assert found["last"]["ne"] == series[-1] > min(series) == found["best"]["ne"]  # it does overfit
    assert (overfitted.result["kept"], overfitted.result["ended_by"]) == ("best", "passes")
    at = found["best"]["after_examples"]
    assert read_manifest(model_files.find(overfitted.folder)).state["examples"] == at < 6_000
    test = overfitted.result["evaluations"]["test"]
    assert test["best"]["after_examples"] == at
    assert test["last"]["after_examples"] == 6_000
    assert not (overfitted.folder / "best").exists()


def test_scoring_and_saving_the_best_is_no_training_time(overfitted):
    """Nothing is trained between the two evaluations of one place: no training time passes."""
    validations, tests = (
        {e["examples"]: e["seconds"] for e in evaluated(overfitted, s)} for s in ("validation", "test")
    )
    both = [(validations[at], tests[at]) for at in tests.keys() - {6_000}]
    assert both
    assert all(abs(after - before) < SAVING for before, after in both)


def test_the_model_left_scores_as_the_result_says(overfitted):
    def scores(world):
        scorer = Scorer(config, world, model_files.find(overfitted.folder))
        found = {split: scorer.evaluate(split) for split in ("validation", "test")}
        scorer.goodbye()
        return found

    config = open_run(overfitted.folder, 1).config
    (found,) = over_threads(config.topology, scores)
    for split, metrics in found.items():
        assert metrics["ne"] == overfitted.result["evaluations"][split]["best"]["ne"]


def test_by_default_the_last_model_is_kept(tmp_path, few, overfitted):
    run = train_over_threads(tmp_path, few, *OVERFIT, "evaluate.keep=last")
    assert run.result["kept"] == "last"
    assert read_manifest(model_files.find(run.folder)).state["examples"] == 6_000
    assert run.result["evaluations"]["validation"] == overfitted.result["evaluations"]["validation"]
    assert not (run.folder / "best").exists()
    kept = zip(run.tables(), overfitted.tables(), strict=True)
    assert any(not np.array_equal(last, best) for last, best in kept)


def test_training_ends_after_evaluations_without_gain(tmp_path, few, overfitted):
    """With several trainers and PSs, who all have to agree."""
    more = ("topology.trainers=2", "topology.sync_ps=1", "sync.algorithm=easgd", "evaluate.patience=2", "data.passes=9")
    run = train_over_threads(tmp_path, few, *OVERFIT, *more)
    series = [line["ne"] for line in evaluated(run)]
    assert run.result["status"] == "complete"
    assert run.result["ended_by"] == "patience"
    assert run.result["examples"] == 1_000 * len(series) < run.result["expected_examples"] == 9_000
    assert all(ne > min(series[:-2]) for ne in series[-2:])
    assert read_manifest(model_files.find(run.folder)).state["examples"] == 1_000 * (1 + int(np.argmin(series)))


@pytest.fixture
def stops(monkeypatch):
    """``stops(k)``: whoever runs the k-th evaluation of this job is asked to stop meanwhile; None: nobody is."""
    run, state = Evaluator.run, {"left": None, "now": False}

    def running(self, *arguments):
        state["now"] = state["left"] == 1
        state["left"] = state["left"] and state["left"] - 1
        return run(self, *arguments)

    def stop_in(number):
        state.update(left=number, now=False)

    monkeypatch.setattr(Evaluator, "run", running)
    monkeypatch.setattr(trainer, "stop_requested", lambda: state["now"])
    return stop_in


def test_stopped_in_any_evaluation_it_keeps_the_same_model(tmp_path, few, overfitted, stops):
    """The best so far and the evaluations without gain are a part of a checkpoint, and an evaluation counts once."""
    reference = train_over_threads(tmp_path / "whole", few, *OVERFIT, "evaluate.patience=2")
    assert reference.result["ended_by"] == "patience"
    for number, at in enumerate([2, 1, 3, 2, 1, 1, 2, None]):
        stops(at)
        run = train_over_threads(tmp_path / "cut", few, *OVERFIT, "evaluate.patience=2", resume=number > 0)
        if run.result["status"] == "complete":
            break
    assert number > 3
    for name in ("status", "ended_by", "kept", "examples", "evaluations"):
        assert run.result[name] == reference.result[name], name
    for mine, expected in zip(run.tables(), reference.tables(), strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_what_an_older_checkpoint_holds_for_best_stays(tmp_path, few, overfitted, stops, monkeypatch):
    """A job that is killed has perhaps found a better one since its checkpoint, which knows only the one before."""
    stops(4)  # validation, test, validation, test
    run = train_over_threads(tmp_path, few, *OVERFIT)
    stops(None)
    retire = ModelSelection._retire

    def retire_and_die(choice, newest):
        retire(choice, newest)
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ModelSelection, "_retire", retire_and_die)
        with pytest.raises(RuntimeError, match="killed"):
            train_over_threads(tmp_path, few, *OVERFIT, resume=True)
    assert {path.name for path in (run.folder / "best").iterdir()} == {"after-1000", "after-2000"}
    run = train_over_threads(tmp_path, few, *OVERFIT, resume=True)
    assert run.result["evaluations"] == overfitted.result["evaluations"]
    assert not (run.folder / "best").exists()


def test_a_best_model_that_cannot_be_saved_costs_no_run(tmp_path, few, inject):
    """The disk is full whenever a model is to be renamed to its place in best/; the last one is kept, and that
    is said.
    """
    inject(disk, "rename", no_room, where=lambda old, new: new.parent.parent.name == "best")
    run = train_over_threads(tmp_path, few, *OVERFIT, "data.passes=2")
    assert (run.result["status"], run.result["kept"]) == ("complete", "last")
    assert read_manifest(model_files.find(run.folder)).state["examples"] == 2_000


def test_older_best_models_that_cannot_be_removed_cost_no_run(tmp_path, few, monkeypatch, inject, caplog):
    """The disk fails where it is asked which checkpoints need them."""
    inject(Store, "committed", broken_disk, where=lambda _: any((tmp_path / "run" / "best").glob("after-*")))
    monkeypatch.setattr(log, "propagate", True)
    run = train_over_threads(tmp_path, few, *OVERFIT, "data.passes=2")
    assert (run.result["status"], run.result["kept"]) == ("complete", "best")
    assert "older best models stay in" in caplog.text


def test_a_checkpoint_of_an_earlier_version_has_no_standing(tmp_path, few, stops):
    stops(4)
    run = train_over_threads(tmp_path, few, *OVERFIT)
    path = Store(run.folder).committed()[-1] / "manifest.json"
    body = json.loads(path.read_text())
    del body["state"]["choice"]
    path.write_text(json.dumps(body))
    shutil.rmtree(run.folder / "best")
    stops(None)
    run = train_over_threads(tmp_path, few, *OVERFIT, resume=True)
    assert run.result["status"] == "complete"
