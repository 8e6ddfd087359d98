"""Which model is kept and when training ends early: the rule by hand, and whole runs that overfit, stopped and gone on
with.
"""

import json
import logging
import math
import shutil
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from datasets import make_dataset
from faults import broken_disk, no_room
from ranks import over_threads
from runs import train_over_threads, write_run_file

from ssmpi.config import load
from ssmpi.model.options import Schedule
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.run_options import EvaluateOptions
from ssmpi.state import run_folder as run_folder
from ssmpi.state.checkpoint import disk, model_files
from ssmpi.state.checkpoint.manager import CheckpointManager
from ssmpi.state.checkpoint.store import Store, read_manifest
from ssmpi.sync import ALGORITHMS, SYNC_PS
from ssmpi.tools.score import open_run
from ssmpi.trainer import trainer
from ssmpi.trainer.evaluate import Evaluator, Scorer
from ssmpi.trainer.metrics.results import PATIENCE, PLATEAU
from ssmpi.trainer.model_selection import ModelSelection, SelectionState

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


# a drop of NE by more than 0.9 is impossible: only the first evaluation is a gain
NO_GAINS = ("evaluate.min_gain=0.9", "schedule.plateau_factor=0.1")


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
        ended = found.ended_by(EvaluateOptions(patience=patience, min_gain=min_gain), Schedule())
        assert ended == (PATIENCE if without >= patience else "")
    assert not found.ended_by(EvaluateOptions(), Schedule())


BARS_X1 = [  # AUC in BARS's logs of DCN v2, whose rate fell from 1e-3 to 1e-4 after pass 7, and 6
    0.805664, 0.807963, 0.809111, 0.809730, 0.810019, 0.810351, 0.810259, 0.813417, 0.813831, 0.813887, 0.813798,
    0.813577,
]  # fmt: skip
BARS_X4 = [0.806450, 0.809079, 0.810513, 0.811169, 0.811757, 0.811747, 0.814037, 0.813989, 0.813659]


@pytest.mark.parametrize(
    ("metric", "figures", "rules", "cuts", "ended"),
    [
        ("auc", BARS_X1, {"patience": 2, "plateau_cuts": 3}, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 3], PATIENCE),
        ("auc", BARS_X4, {"patience": 2, "plateau_cuts": 3}, [0, 0, 0, 0, 0, 1, 1, 2, 3], PATIENCE),
        ("ne", [0.9, 0.8, 0.81, 0.79, 0.8], {}, [0, 0, 1, 1, 1], PLATEAU),
        ("ne", [0.9, 0.9, 0.9], {}, [0, 1, 1], PLATEAU),
        ("ne", [0.9, math.nan, 0.8], {}, [0, 1, 1], ""),
        ("ne", [0.9, 0.91, 0.8, 0.81, 0.82], {"plateau_patience": 2}, [0, 0, 0, 0, 1], ""),
        ("ne", [0.9, 0.91, 0.92, 0.91, 0.9], {"plateau_patience": 2}, [0, 0, 1, 1, 1], PLATEAU),
        ("ne", [0.9, 0.91, 0.92, 0.93], {"patience": 3, "plateau_patience": 2}, [0, 0, 1, 1], PATIENCE),
        ("ne", [0.9, 0.91, 0.92], {"plateau_factor": 1.0}, [0, 0, 0], ""),
    ],
)
def test_rates_are_cut_at_plateaus_and_then_training_ends(metric, figures, rules, cuts, ended):
    options = EvaluateOptions(metric=metric, patience=rules.get("patience", 0), min_gain=1e-6)
    schedule = Schedule(**{"plateau_factor": 0.1, **{name: rules[name] for name in rules.keys() - {"patience"}}})
    state, found = SelectionState("validation", metric), []
    for value in figures:
        assert not state.ended_by(options, schedule)
        state = state.after(value, options.min_gain, schedule.plateau_patience if schedule.cuts else 0)
        found.append(schedule.cut(state.plateaus))
    assert found == [0.1**n for n in cuts]
    assert state.ended_by(options, schedule) == ended


@pytest.mark.parametrize(
    ("renamed", "more"), [({}, {}), ({"kept_value": "kept_ne"}, {}), ({"kept_value": "kept_ne"}, {"auc": 0.7})]
)
def test_a_standing_survives_json(renamed, more):
    """Also those of earlier versions, which knew NE alone, and no plateaus."""
    found = replace(standing(0.8, math.nan), kept_value=0.8, kept=70)
    state = {renamed.get(name, name): value for name, value in vars(found).items()}
    if renamed:
        del state["metric"], state["plateaus"]
    assert SelectionState.of_json(json.loads(json.dumps(state | more, allow_nan=False))) == found


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("evaluate.keep=first", "not one of last, best"),
        ("evaluate.patience=-1", "evaluate.patience must be at least 0"),
        ("evaluate.min_gain=nan", "evaluate.min_gain = nan is not a finite number"),
        ("evaluate.min_gain=0.1", "for evaluate.patience and schedule.plateau_factor: set one of them too"),
        ("evaluate.metric=gauc", "not one of ne, auc"),
        ("schedule.plateau_factor=0", "schedule.plateau_factor must be positive and at most 1"),
        ("schedule.plateau_patience=0", "schedule.plateau_patience must be at least 1"),
        ("schedule={plateau_factor=0.1,plateau_cuts=10}", "would leave 1e-10 of the learning rates"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(tmp_path, override, said):
    (tmp_path / "run.toml").write_text('[data]\nfolder = "data"')
    with pytest.raises(SettingsError, match=said):
        load(tmp_path / "run.toml", (override,))


def test_a_cut_that_would_come_too_late_is_refused(tmp_path):
    (tmp_path / "run.toml").write_text('data.folder = "data"\nschedule.plateau_factor = 0.1\nevaluate.patience = 1')
    with pytest.raises(
        SettingsError, match=r"evaluate\.patience = 1 ends training before schedule\.plateau_patience = 1"
    ):
        load(tmp_path / "run.toml")


@pytest.mark.parametrize("rule", ["evaluate.keep=best", "evaluate.patience=2", "schedule.plateau_factor=0.1"])
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


def test_the_best_model_may_be_that_of_another_metric(tmp_path, few, overfitted):
    """AUC is best in another pass than NE."""
    run = train_over_threads(tmp_path, few, *OVERFIT, "evaluate.metric=auc")
    series, ne = ([line[name] for line in evaluated(run)] for name in ("auc", "ne"))
    best = run.result["evaluations"]["validation"]["best"]
    assert best["auc"] == max(series)
    assert best["ne"] > min(ne)
    assert read_manifest(model_files.find(run.folder)).state["examples"] == best["after_examples"]


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


@pytest.mark.parametrize(
    ("rule", "ended"),
    [
        (("evaluate.patience=2",), PATIENCE),
        ((*NO_GAINS, "schedule.plateau_cuts=2"), PLATEAU),
        ((*NO_GAINS, "schedule.plateau_cuts=2", "evaluate.metric=auc"), PLATEAU),
    ],
    ids=["patience", "plateau", "auc"],
)
def test_stopped_in_any_evaluation_it_keeps_the_same_model(tmp_path, few, overfitted, stops, rule, ended):
    """The best so far, the evaluations without gain and the cuts are a part of a checkpoint, and an evaluation counts
    once.
    """
    reference = train_over_threads(tmp_path / "whole", few, *OVERFIT, *rule)
    assert reference.result["ended_by"] == ended
    for number, at in enumerate([2, 1, 3, 2, 1, 1, 2, None]):
        stops(at)
        run = train_over_threads(tmp_path / "cut", few, *OVERFIT, *rule, resume=number > 0)
        if run.result["status"] == "complete":
            break
    assert number > 3
    for name in ("status", "ended_by", "kept", "examples", "evaluations"):
        assert run.result[name] == reference.result[name], name
    for mine, expected in zip(run.tables(), reference.tables(), strict=True):
        np.testing.assert_array_equal(mine, expected)


@pytest.fixture
def factors(monkeypatch):
    """The factor of the learning rates at the start of each part, by trainer."""
    found, train_part = defaultdict(list), trainer.Trainer.train_part

    def training(self, *arguments):
        found[self.world.index].append(self.progress.rate_factor())
        train_part(self, *arguments)

    monkeypatch.setattr(trainer.Trainer, "train_part", training)
    return found


BY = defaultdict(tuple, synchronous=("sync.pace=fixed_rate", "sync.every_iterations=1"))
BY |= {name: ("topology.sync_ps=1",) for name, kind in ALGORITHMS.items() if kind.partner == SYNC_PS}


@pytest.mark.parametrize(
    ("algorithm", "more"), [*((name, BY[name]) for name in ALGORITHMS), ("none", ("topology.group=3",))]
)
def test_all_trainers_cut_the_rates_in_the_same_part(tmp_path, few, factors, monkeypatch, caplog, algorithm, more):
    monkeypatch.setattr(log, "propagate", True)
    caplog.set_level(logging.INFO, log.name)
    three = ("topology.trainers=3", f"sync.algorithm={algorithm}", *more, *NO_GAINS, "schedule.plateau_cuts=2")
    run = train_over_threads(tmp_path, few, *OVERFIT, *three)
    assert factors == {number: [1.0, 1.0, 0.1, 0.1**2] for number in range(3)}
    assert (run.result["ended_by"], run.result["examples"]) == (PLATEAU, 4_000)
    said = "after 2,000 examples: 1 evaluation without gain, training goes on with dense.rate = 0.0005 and embedding"
    assert said in caplog.text
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    assert {line["rate_factor"] for line in lines if line["kind"] == "train"} == {1.0, 0.1, 0.1**2}


EVERY_STEP = ("sync.pace=fixed_rate", "sync.every_iterations=1", "data.handout=static")


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("run.shared_memory=false",),
        ("sync.algorithm=synchronous", "topology.trainers=2", *EVERY_STEP),
        ("sync.algorithm=async_ps", "topology.sync_ps=1", *EVERY_STEP),
    ],
    ids=["in place", "messages", "synchronous", "async_ps"],
)
def test_a_cut_reaches_whoever_takes_the_steps(tmp_path, few, more):
    """With nearly nothing left of the rates, a third pass leaves dense parameters and rows where they were."""
    given = (*OVERFIT, *more, "evaluate.keep=last")
    two = train_over_threads(tmp_path / "two", few, *given, "data.passes=2")
    cut = train_over_threads(tmp_path / "cut", few, *given, *NO_GAINS, "schedule.plateau_factor=1e-9", "data.passes=3")
    assert cut.result["examples"] == 3_000
    for mine, expected in zip(
        (*cut.dense().values(), *cut.tables()), (*two.dense().values(), *two.tables()), strict=True
    ):
        np.testing.assert_allclose(mine, expected, atol=1e-6)


def test_a_cut_outlives_a_resume_with_other_trainers(tmp_path, few, factors, stops, inject):
    """Also before the first step: an algorithm may push what is left of earlier ones."""
    stops(3)  # of the third pass
    given = (*OVERFIT, *NO_GAINS, "evaluate.final=none", "evaluate.keep=last")
    train_over_threads(tmp_path, few, *given)
    assert factors == {0: [1.0, 1.0, 0.1]}
    factors.clear()
    stops(None)
    built = []
    inject(trainer.build_trainer, "synchronization", lambda *arguments: built.append(arguments[-1].factor()))
    run = train_over_threads(tmp_path, few, *given, "topology.trainers=2", "schedule.plateau_cuts=2", resume=True)
    assert built == [0.1, 0.1]
    assert factors[0] == factors[1]
    assert set(factors[0]) <= {0.1, 0.1**2}
    assert run.result["ended_by"] == PLATEAU


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
