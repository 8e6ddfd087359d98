"""Lockstep studies: what is run, that it goes on where it stood, and what is compared."""

import itertools
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from datasets import make_dataset

from jobs.lab.__main__ import parser
from jobs.lab.lockstep import comparisons, study, trials
from jobs.lab.lockstep.design import Arm, Subject, Trial, load
from jobs.lab.lockstep.run import Lockstep, LockstepRun
from ssmpi.cli import main
from ssmpi.runtime.errors import DataError, SettingsError, TrainingError
from ssmpi.state import run_lock

ROOT = Path(__file__).parents[3]
STUDY = """
[study]
folder = '{folder}'
steps = 6
trainers = [2]
gaps = [2, 3]
tuning_seeds = [101, 102]
seeds = 2
[settings]
data.folder = '{data}'
model.bottom = [16, 4]
model.top = [1]
embedding.dim = 4
[algorithms.MA]
sync.algorithm = "ma"
sync.alpha = [0.5, 1.0]
topology.sync_ps = 0
"""


def a_study(folder, data, *overrides, text=STUDY):
    file = folder / "study.toml"
    file.write_text(text.format(folder=folder / "results", data=data))
    return load(file, overrides)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small_data):
    """A study that was stopped before each of its first runs, and then went on to the end."""
    design = a_study(tmp_path_factory.mktemp("study"), small_data)
    for _ in range(5):
        ledger = trials.TrialLog(design)
        task = study.missing(design, ledger)[0]
        ledger.note(task[0], trials.run(design, *task))
    assert study.run_all(design, minutes=0) == 1
    with pytest.MonkeyPatch.context() as patch:  # threads start in no time
        patch.setattr(study, "ProcessPoolExecutor", lambda jobs, mp_context: ThreadPoolExecutor(jobs))
        assert study.run_all(design, jobs=2) == 0
    return design


def lines(design):
    return [json.loads(line) for line in (design.folder / trials.TRIALS).read_text().splitlines()]


def test_every_trial_is_run_once_and_tuning_sees_no_test_rows(finished):
    found = lines(finished)
    keys = [json.dumps(line["trial"]) for line in found]
    assert len(set(keys)) == len(keys) == 2 * 2 + 2 * 6  # two candidates are tuned, six arms reported
    for line in found:
        assert ("test" in line) == (line["trial"]["seed"] < 100)


def test_the_candidate_with_the_lowest_validation_ne_is_reported(finished):
    tuned = {}
    for line in lines(finished):
        key = line["trial"]
        if "MA" in key["arm"] and key["seed"] > 100:
            tuned.setdefault(key["choice"]["sync.alpha"], []).append(line["validation"])
    best = min(tuned, key=lambda alpha: np.mean(tuned[alpha]))
    reported = {line["trial"]["choice"]["sync.alpha"] for line in lines(finished) if line["trial"]["choice"]} - {
        alpha for alpha in tuned if alpha != best
    }
    assert reported == {best}
    assert {len(values) for values in tuned.values()} == {2}


@pytest.mark.parametrize(("pace", "stale"), [("S", 3), ("FR", 0)])
def test_an_arm_is_the_lockstep_run_of_its_settings(finished, pace, stale):
    subject = Subject("MA", 2)
    choice = trials.best(finished, subject, trials.TrialLog(finished))
    found = trials.TrialLog(finished).find(Trial(Arm(subject, pace, 3.0), choice, 2))
    run = LockstepRun(finished.config(subject, choice), Lockstep(3, stale, 2, 2, 2, 2, steps=6))
    run.train()
    assert found.ne["test"] == run.score("test")["ne"]


def test_one_trainer_sees_the_rows_of_all(finished):
    found = trials.TrialLog(finished).find(Trial(Arm(Subject("one trainer", 2)), {}, 1))
    config = finished.config(Subject("one trainer", 2), {})
    assert (config.topology.trainers, config.sync.algorithm) == (1, "none")
    assert (config.schedule.decay_start_examples, config.schedule.decay_examples) == (1024, 512)
    run = LockstepRun(config, Lockstep(1, 0, 1, 1, 1, 1, steps=12))
    run.train()
    assert found.ne["test"] == run.score("test")["ne"]


def test_results_say_what_was_decided(finished):
    text = (finished.folder / "results.md").read_text()
    body = json.loads((finished.folder / "results.json").read_text())
    assert body["seeds"] == [1, 2]
    ne = {arm["arm"]: np.array(arm["ne"]) for arm in body["arms"]}
    whole = np.mean([ne[f"S-MA-{gap}"] / ne[f"FR-MA-{gap}"] - 1 for gap in (2, 3)], axis=0)
    np.testing.assert_allclose(body["verdicts"][0]["comparison"]["differences"], whole)
    assert f"| all | {whole.mean():+.3%} |" in text
    assert {path.name for path in finished.folder.glob("*.png")} == {"trend.png", "verdicts.png"}


def test_the_command_goes_on_where_the_study_stood(finished, capsys):
    before = lines(finished)
    with pytest.raises(SystemExit) as done:
        main(["equivalence", str(finished.path), "--minutes=0"], parser())
    assert not done.value.code
    assert (finished.folder / "results.md").read_text() in capsys.readouterr().out
    assert lines(finished) == before


def test_published_trials_are_printed_despite_newer_settings(finished, tmp_path, capsys):
    record = tmp_path / "published.jsonl"
    record.write_text((finished.folder / trials.TRIALS).read_text())
    other = f"data.folder={tmp_path}/nowhere", "model.top=[4, 1]"
    overrides = [f"settings.{each}" for each in other]
    with pytest.raises(SystemExit) as done:
        main(["equivalence", str(finished.path), "--trials", str(record), *overrides], parser())
    assert not done.value.code
    assert capsys.readouterr().out.strip() == (finished.folder / "results.md").read_text().strip()
    record.write_text(record.read_text() + "{}\n")
    with pytest.raises(DataError, match=rf"{record}, line \d+: not the record of a trial"):
        trials.RecordedTrials(record)


SIZES = ("study.trainers=[]", "study.paces=['S']", "study.gaps=[2]", "study.sizes=[[4, 1], [2, 2], [2, 1]]")


def test_sizes_take_the_same_rows_and_are_compared_with_each_other(tmp_path, small_data, capsys):
    """Each is tuned for itself, and runs as many steps as come to the rows of the first."""
    design = a_study(tmp_path, small_data, *SIZES)
    assert study.run_all(design) == 0
    found = lines(design)
    assert len(found) == 3 * (2 * 2 + 2)
    reported = [line for line in found if line["trial"]["seed"] == 2]
    assert [(line["trial"]["trainers"], line["trial"]["threads"]) for line in reported] == [(4, 1), (2, 2), (2, 1)]
    ne = []
    for line, (trainers, threads, steps) in zip(reported, ((4, 1, 6), (2, 2, 6), (2, 1, 12)), strict=True):
        config = design.config(Subject("MA", trainers, threads), line["trial"]["choice"])
        assert (config.topology.trainers, config.topology.threads) == (trainers, threads)
        assert config.schedule.decay_start_examples + config.schedule.decay_examples == 6 * 4 * 128
        run = LockstepRun(config, Lockstep(2, 2, 2, 2, 2, 2, steps=steps))
        run.train()
        assert 6 * 4 * 128 - 128 < run.progress.examples <= 6 * 4 * 128  # the last batch of a shard is smaller
        ne.append(run.score("test")["ne"])
    assert [line["test"] for line in reported] == ne
    body = json.loads((design.folder / "results.json").read_text())
    verdicts = {each["comparison"]["name"]: each["comparison"]["differences"][1] for each in body["verdicts"]}
    wanted = {"MA, 2 x 2 against 4 x 1": ne[1] / ne[0] - 1, "MA, 2 x 1 against 4 x 1": ne[2] / ne[0] - 1}
    assert verdicts == pytest.approx(wanted | {"MA, 2 x 1 against 2 x 2": ne[2] / ne[1] - 1})
    assert [path.name for path in design.folder.glob("*.png")] == ["verdicts.png"]
    capsys.readouterr()
    assert study.print_recorded(design, design.folder / trials.TRIALS) == 0
    printed = capsys.readouterr().out
    assert printed.strip() == (design.folder / "results.md").read_text().strip()
    assert "| S-MA-2 | 2 x 2 |" in printed


def test_differences_of_several_arms_are_averaged_within_a_seed(tmp_path, small_data):
    design = a_study(tmp_path, small_data)
    subject, values = Subject("MA", 2), iter(np.random.default_rng(0).uniform(0.7, 0.8, (6, 3)))
    results = {arm: next(values) for arm in design.arms(subject)}
    results |= {Arm(Subject(name, 2)): next(values) for name in ("one trainer", "no rounds")}
    found = {each.name: each.differences for each in comparisons.of(design, results)}
    shadow = (results[Arm(subject, "S", 2.0)] + results[Arm(subject, "S", 3.0)]) / 2
    wanted = shadow / results[Arm(Subject("one trainer", 2))] - 1
    np.testing.assert_allclose(found["S-MA, 2 trainers, against one trainer"], wanted)
    frequent = results[Arm(subject, "S", 2.0)] / results[Arm(subject, "FR", 3.0)] - 1
    np.testing.assert_allclose(found["S-2 against FR-3, 2 trainers"], frequent)
    assert len(found) == 1 + 1 + 2 + 1 + 4


@pytest.mark.parametrize(
    ("tuned", "words"),
    [
        ('dense.optimizer=["sgd", "adagrad"]', {"optimizer sgd", "optimizer adagrad"}),
        ("model.top=[[8, 1], [1]]", {"top 8 1", "top 1"}),
    ],
)
def test_names_and_lists_are_tuned_as_numbers_are(tmp_path, small_data, tuned, words):
    """They ended the study with a traceback, one after its first run, the other before it."""
    more = "study.steps=1", "study.gaps=[1]", "algorithms.MA.sync.alpha=0.5"
    design = a_study(tmp_path, small_data, f"algorithms.MA.{tuned}", *more)
    assert study.run_all(design) == 0
    arms = [line for line in (design.folder / "results.md").read_text().splitlines() if line.startswith("| S-MA-1 ")]
    assert any(f"| {each} |" in line for line in arms for each in words)


def test_a_candidate_that_diverges_loses(tmp_path, small_data):
    """It ended the study; if only the last step diverged its NE was NaN, which ``argmin`` takes for the lowest."""
    subject, sgd = Subject("MA", 2), ("algorithms.MA.sync.alpha=0.5", "algorithms.MA.dense.optimizer=sgd")

    def tuned(rates):
        design = a_study(tmp_path, small_data, "study.steps=2", *sgd, f"algorithms.MA.dense.rate={rates}")
        ledger = trials.TrialLog(design)
        for trial in itertools.chain(*design.tuning(subject)):
            ledger.note(trial, trials.run(design, trial, ["validation"]))
        for line in (design.folder / trials.TRIALS).read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)
        return trials.best(design, subject, trials.TrialLog(design))

    assert tuned([1e30, 0.01]) == {"dense.rate": 0.01}
    with pytest.raises(TrainingError, match="MA, 2 trainers: every candidate diverges"):
        tuned([1e30, 1e31])
    design = a_study(tmp_path, small_data, "study.steps=2", *sgd, "algorithms.MA.dense.rate=1e30")
    with pytest.raises(TrainingError, match="diverged"):
        trials.run(design, Trial(Arm(subject, "S", 2.0), {}, 1), ["validation", "test"])


def test_rows_without_a_score_are_not_left_out_of_ne(tmp_path, small_data):
    """NE was that of the other rows."""
    subject = Subject("no rounds", 2)
    design = a_study(tmp_path, small_data)
    run = LockstepRun(design.config(subject, {}), Lockstep(steps=1))
    run.train()
    assert run.score("test")["rows"] == 600
    run.tables.shards[0].rows.weights[0] = np.nan
    with pytest.raises(TrainingError, match="test rows"):
        run.score("test")


@pytest.mark.parametrize("change", ["study.steps=7", "settings.dense.rate=0.1", "study.decay_share=0"])
def test_runs_of_another_design_are_not_taken_for_its_own(tmp_path, small_data, change):
    trial = Trial(Arm(Subject("MA", 2), "S", 3.0), {"sync.alpha": 0.5}, 1)
    trials.TrialLog(a_study(tmp_path, small_data)).note(trial, trials.TrialResult({"validation": 0.7}, 1.0, ""))
    assert trials.TrialLog(a_study(tmp_path, small_data, "study.seeds=50")).find(trial)
    assert not trials.TrialLog(a_study(tmp_path, small_data, change)).find(trial)


def test_runs_on_other_rows_are_not_taken_for_its_own(tmp_path, small_data):
    """Another data set was prepared into the same folder, and the study called itself done."""
    data, trial = tmp_path / "data", Trial(Arm(Subject("MA", 2), "S", 3.0), {"sync.alpha": 0.5}, 1)
    shutil.copytree(small_data, data)
    trials.TrialLog(a_study(tmp_path, data)).note(trial, trials.TrialResult({"validation": 0.7}, 1.0, ""))
    assert trials.TrialLog(a_study(tmp_path, data)).find(trial)
    shutil.rmtree(data)
    make_dataset(data, rows=6_000, seed=1, shard=2_300)
    assert not trials.TrialLog(a_study(tmp_path, data)).find(trial)


def test_lines_that_do_not_name_their_data_still_count(tmp_path, small_data):
    design, trial = a_study(tmp_path, small_data), Trial(Arm(Subject("MA", 2), "S", 3.0), {"sync.alpha": 0.5}, 1)
    trials.TrialLog(design).note(trial, trials.TrialResult({"validation": 0.7}, 1.0, ""))
    path = design.folder / trials.TRIALS
    line = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in line.items() if name != "data"}) + "\n")
    assert trials.TrialLog(design).find(trial)


def test_who_only_prints_leaves_a_line_that_is_being_written_alone(tmp_path, small_data):
    """``--minutes 0`` beside a running study cut off what that one had just written."""
    design, trial = a_study(tmp_path, small_data), Trial(Arm(Subject("one trainer", 2)), {}, 1)
    trials.TrialLog(design).note(trial, trials.TrialResult({"validation": 0.7}, 1.0, ""))
    path = design.folder / trials.TRIALS
    written = path.read_bytes() + b'{"trial": '
    path.write_bytes(written)
    assert study.run_all(design, minutes=0) == 1
    assert path.read_bytes() == written


def test_one_process_runs_a_study(tmp_path, small_data):
    """Both ran every trial, and the second removed from the file what the first had written."""
    design = a_study(tmp_path, small_data)
    design.folder.mkdir()
    with run_lock.acquire(design.folder / study.LOCK, lambda _: 0.0):
        with pytest.raises(SettingsError, match=r"another process is running this study \(process"):
            study.run_all(design)
        assert study.run_all(design, minutes=0) == 1
    assert not (design.folder / trials.TRIALS).exists()


def test_a_seed_that_was_tuned_with_is_run_again_to_be_reported(tmp_path, small_data):
    """More seeds were asked for, and other ones to tune with: the table ended with a KeyError."""
    ma = Subject("MA", 2)
    design = a_study(tmp_path, small_data, "study.tuning_seeds=[3]")
    ledger = trials.TrialLog(design)
    for trial in itertools.chain(*design.tuning(ma)):
        ledger.note(trial, trials.TrialResult({"validation": 0.7}, 1.0, ""))
    design = a_study(tmp_path, small_data, "study.tuning_seeds=[101]", "study.seeds=3")
    ledger = trials.TrialLog(design)
    for trial in itertools.chain(*design.tuning(ma)):
        ledger.note(trial, trials.TrialResult({"validation": 0.7}, 1.0, ""))
    again = Trial(Arm(ma, "S", 2.0), {"sync.alpha": 0.5}, 3)
    assert ledger.find(again)
    assert (again, ("validation", "test")) in study.missing(design, ledger)


def test_a_torn_last_line_is_run_again_and_a_damaged_one_is_named(tmp_path, small_data):
    design = a_study(tmp_path, small_data)
    first, second = (Trial(Arm(Subject("one trainer", 2)), {}, seed) for seed in (1, 2))
    ledger = trials.TrialLog(design)
    for trial in (first, second):
        ledger.note(trial, trials.TrialResult({"validation": 0.7}, 1.0, ""))
    path = design.folder / trials.TRIALS
    path.write_bytes(path.read_bytes()[:-5])
    ledger = trials.TrialLog(design)
    assert ledger.find(first)
    assert not ledger.find(second)
    path.write_text("{}\n")
    with pytest.raises(DataError, match=r"trials.jsonl, line 1: .* remove that line"):
        trials.TrialLog(design)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("study.tuning_seeds=[2]", r"\[2\] are reported"),
        ("study.seeds=1", "seeds must be at least 2"),
        ("study.trainers=[1]", "trainers must be at least 2"),
        ("study.gaps=[5, 5]", "must be different"),
        ("study.trainers=[]", "set either trainers or sizes"),
        ("study.sizes=[[8, 1]]", "set either trainers or sizes"),
        ("study.paces=['S', 'S']", "must be different"),
        ("study.paces=['shadow']", "not one of S, FR"),
        ("algorithms.MA.sync.algorithm=gossip", "lockstep knows"),
        ("algorithms.MA.sync.alhpa=1", "alhpa"),
        ("study.margn=1", "margn"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(tmp_path, small_data, override, said):
    with pytest.raises(SettingsError, match=said):
        a_study(tmp_path, small_data, override)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["study.sizes=[[4, 1], [2]]"], r"sizes: \[2\] is not \[trainers, threads of each\]"),
        (["study.sizes=[[4, 1], [2, 0]]"], r"sizes: \[2, 0\] is not"),
        (["study.sizes=[[4, 1], [5, 1]]"], "5 x 1 cannot divide the 6 steps of 4 x 1: make steps a multiple of 5"),
        (["study.sizes=[[4, 1], [4, 1]]"], "must be different"),
        (["references.dense.rate=0.01"], r"\[references\] are not run with sizes"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(tmp_path, small_data, overrides, said):
    with pytest.raises(SettingsError, match=said):
        a_study(tmp_path, small_data, *SIZES, *overrides)


@pytest.mark.parametrize("path", sorted((ROOT / "jobs/studies/lockstep").glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_studies_resolve(path):
    design = load(path)
    if design.options.sizes:
        assert {design.examples(s, design.config(s, {"dense.rate": 0.04})) for s in design.subjects} == {1_024_000}
        return
    assert {"EASGD", "MA", "BMUF"} <= set(design.algorithms)
    assert design.options.gaps == (5, 30)


def test_every_thread_takes_a_batch_in_a_step(tmp_path, small_data):
    """Rates were 0 after the first of four threads' share of the rows, and too few rows were not refused."""
    subject = Subject("MA", 2)
    many = "settings.topology.threads=3", "settings.data.batch_size=20"
    design = a_study(tmp_path, small_data, *many)
    config = design.config(subject, {"sync.alpha": 0.5})
    run = LockstepRun(config, design.lockstep(Arm(subject, "S", 2.0), 1))
    run.train()
    assert run.progress.examples == config.schedule.decay_start_examples + config.schedule.decay_examples == 720
    assert run.progress.rate_factor() == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(SettingsError, match="2 trainers take 12,000 rows in 100 steps"):
        study.run_all(a_study(tmp_path, small_data, *many, "study.steps=100"))


def test_too_few_rows_are_refused(tmp_path, small_data):
    with pytest.raises(SettingsError, match="2 trainers take 256,000,000 rows in 1,000,000 steps"):
        study.run_all(a_study(tmp_path, small_data, "study.steps=1_000_000"))
