"""The result table says what the run folder says, and why if there is nothing to say."""

import json
import re
from contextlib import nullcontext

import pytest

from ssmpi.runtime.errors import DataError
from ssmpi.tools import report

QUALITY = {"ne": 0.81234, "log_loss": 0.45678, "auc": 0.78901, "accuracy": 0.79, "rows": 1_000.0}


def run_folder(tmp_path, **changes):
    result = {
        "status": "complete",
        "examples": 12_345.0,
        "expected_examples": 12_345,
        "eps": 6_789.0,
        "sync_gap_thread": 3.25,
        "evaluations": {"validation": {"last": {**QUALITY, "ne": 0.9}}, "test": {"last": QUALITY}},
    }
    (tmp_path / "result.json").write_text(json.dumps({**result, **changes}))
    return tmp_path


def write(path, content):
    path.write_text(json.dumps(content))
    return path


def test_the_test_split_comes_first_in_the_choice(tmp_path):
    text = report.table(run_folder(tmp_path), None, None)
    assert "test: 1,000 rows" in text
    assert "0.81234" in text
    assert "0.90000" not in text


def test_the_split_that_the_run_names_as_final_comes_before_all(tmp_path):
    (tmp_path / "run.toml").write_text('[evaluate]\nsplit = "test"\nfinal = "holdout"\n')
    scored = {"test": {"last": {**QUALITY, "ne": 0.9}}, "holdout": {"last": QUALITY}}
    text = report.table(run_folder(tmp_path, evaluations=scored), None, None)
    assert "holdout: 1,000 rows" in text
    assert "0.81234" in text


def test_a_run_without_a_split_to_score_shows_what_it_scored_ahead(tmp_path):
    whole = {**QUALITY, "calibration": 1.01, "parts": 4}
    run = run_folder(tmp_path, evaluations={"progressive": {"whole": whole}})
    text = report.table(run, None, None)
    assert "before training on them (4 parts, 1,000 rows): NE 0.81234, log-loss 0.45678, AUC 0.78901" in text
    assert "complete: 12,345 examples at 6,789 EPS" in text
    with pytest.raises(DataError, match="before it was evaluated"):
        report.table(run, write(tmp_path / "b.json", {}), None)


def test_reference_points_stand_around_the_run(tmp_path):
    baseline = write(
        tmp_path / "b.json", {"constant": {**QUALITY, "ne": 1.0}, "logistic_regression": {**QUALITY, "ne": 0.85}}
    )
    teacher = write(tmp_path / "t.json", {"ranges": {"test": {**QUALITY, "ne": 0.75}}})
    lines = report.table(run_folder(tmp_path), baseline, teacher).splitlines()
    column = [line.split()[-4] for line in lines if "0.45678" in line]
    assert column == ["1.00000", "0.85000", "0.81234", "0.75000"]
    trees = write(tmp_path / "b.json", {**json.loads(baseline.read_text()), "boosted_trees": {**QUALITY, "ne": 0.8}})
    assert "boosted trees 0.80000" in " ".join(report.table(run_folder(tmp_path), trees, teacher).split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"rows": 900}, "900 rows of test, and this run 1000 of test"),
        ({"split": "validation"}, "1000 rows of validation, and this run 1000 of test"),
    ],
)
def test_reference_points_of_other_data_are_refused(tmp_path, change, message):
    """They stood in the table beside the run as if they were of its rows."""
    run, of = run_folder(tmp_path), {"split": "test", "rows": 1_000, **change}
    given = [(write(tmp_path / "b.json", {**of, "constant": QUALITY, "logistic_regression": QUALITY}), None)]
    if "split" not in change:
        given.append(
            (None, write(tmp_path / "t.json", {"ranges": {"test": {**QUALITY, "rows": [50, 50 + of["rows"]]}}}))
        )
    for files in given:
        with pytest.raises(DataError, match=message) if message else nullcontext():
            report.table(run, *files)


def test_a_best_evaluation_that_was_not_the_last_is_said(tmp_path):
    """Over four passes the validation NE went from 0.813 to 1.016; which model was kept is to be seen."""
    best, last = {**QUALITY, "ne": 0.813, "after_examples": 8e3}, {**QUALITY, "ne": 1.016, "after_examples": 32e3}
    evaluations = {"validation": {"best": best, "last": last}, "test": {"last": {**last, "ne": 1.02}}}
    text = report.table(run_folder(tmp_path, evaluations=evaluations), None, None)
    assert "this run 1.02000" in " ".join(text.split())
    found = (
        "validation NE: best 0.81300 after 8,000 examples, last 1.01600 after 32,000 examples; the last model was kept"
    )
    assert found in text
    evaluations["test"]["best"] = {**best, "ne": 0.82}
    ended = {"kept": "best", "ended_by": "patience"}
    text = report.table(run_folder(tmp_path, evaluations=evaluations, **ended), None, None)
    words = " ".join(text.split())
    assert "this run, last 1.02000" in words
    assert "this run, best (kept) 0.82000" in words
    assert "complete, ended by evaluate.patience: 12,345 examples" in text
    assert "the best model was kept" in text


def test_a_divergence_that_was_not_finite_is_left_out(tmp_path):
    rounds = {"rounds": 9.0, "round_seconds": 0.001, "staleness": 2.0, "divergence": None}
    assert "rounds: 9, each 1.0 ms or 2.0 iterations of a trainer" in report.table(
        run_folder(tmp_path, **rounds), None, None
    )


def test_how_it_ended_and_how_fast_is_in_it(tmp_path):
    text = report.table(run_folder(tmp_path, status="stopped"), None, None)
    assert "stopped: 12,345 examples at 6,789 EPS" in text
    assert "3.2" in text


def test_a_metric_that_is_missing_is_a_dash(tmp_path):
    text = report.table(run_folder(tmp_path, evaluations={"test": {"last": {**QUALITY, "auc": None}}}), None, None)
    assert " - " in text
    assert "labels" not in text


def test_equal_labels_are_the_reason_for_scores_that_are_not_defined(tmp_path):
    equal = {**QUALITY, "log_loss": 0.25, "ne": None, "auc": None}
    text = report.table(run_folder(tmp_path, evaluations={"test": {"last": equal}}), None, None)
    assert "\nall labels of these rows are equal, so NE and AUC are not defined: score rows with both labels\n" in text


def test_what_was_sent_is_in_it(tmp_path):
    nothing = dict.fromkeys(("embedding_push", "center_push", "center_pull", "trainers"), 0)
    sent = {"embedding_pull": 12_345_000.0, "control": 24_690, **nothing, "rows_in_place": 1_234_567}
    text = report.table(run_folder(tmp_path, bytes=sent), None, None)
    assert "sent: embedding pull 12.3, control 0.0247 MB; 1,002.0 bytes an example; 1,234,567 rows in place" in text
    assert "sent" not in report.table(run_folder(tmp_path, bytes={"unknown": 1}), None, None)
    assert "sent" not in report.table(run_folder(tmp_path), None, None)


STOPPED = {"status": "stopped", "examples": 70.0, "expected_examples": 6000, "evaluations": {}}
WINDOW = (
    '{"kind": "train", "examples": 4000, "seconds": 12.5, "eps": 400.0, "ne": 0.92, "log_loss": 0.45, '
    '"eps_by_trainer": [300.0, 100.0], "steps_by_trainer": [3.0, 1.0]}\n'
)
VALIDATION = (
    '{"kind": "evaluation", "weights": "model", "split": "validation", "examples": 3000, "seconds": 9.0, "ne": 0.91}\n'
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"result\.json: not JSON at line 1, column 2: no final results"),
        ("", r"result\.json: empty: no final results"),
    ],
)
def test_a_damaged_result_says_what_is_known_and_how_it_goes_on(tmp_path, content, message):
    (tmp_path / "metrics.jsonl").write_text(WINDOW + VALIDATION)
    (tmp_path / "result.json").write_text(content)
    known = r".*validation NE 0\.91000 after 3,000 examples\. "
    with pytest.raises(DataError, match=f"^{tmp_path}: {message}{known}Restore an intact copy"):
        report.table(tmp_path, None, None)


@pytest.mark.parametrize(
    ("result", "status", "why"),
    [
        (None, "unfinished", r"no result\.json: still running, or killed\. Last seen after 4,000 examples and 12 s"),
        (STOPPED, "stopped", r"it ended \(stopped\) before it was evaluated on test or validation"),
    ],
)
def test_a_run_that_has_not_ended_shows_how_far_it_has_come(tmp_path, small_data, result, status, why):
    """In total 6,000 examples, as the result says, or the run's data."""
    (tmp_path / "metrics.jsonl").write_text(WINDOW + VALIDATION)
    (tmp_path / "run.toml").write_text(f'[data]\nfolder = "{small_data}"\ntrain_split = "train"\npasses = 1\n')
    if result:
        write(tmp_path / "result.json", result)
    first, last, trainers, rest = report.table(tmp_path, None, None).split("\n")
    assert first == f"{status}: 4,000 of 6,000 (66.7%) examples in 12 s, 320 EPS"
    assert last == "last window of training: NE 0.92000, log-loss 0.45000, AUC -, calibration -"
    assert trainers == "trainers (median 200 EPS): 0: 300 EPS, 3.0 steps/s; 1: 100 EPS, 1.0 steps/s"
    assert re.match(rf"{why}.*validation NE 0\.91000 after 3,000 examples\. If no job is running it, ", rest)


def test_rates_of_trainers_are_means_over_time_and_of_many_the_slowest_are_shown(tmp_path):
    lines = [(1_000, 100.0, [9.0] * 10), (1_600, 600.0, [20.0] * 10)]  # 10 s and 1 s
    windows = [
        {"kind": "train", "examples": n, "seconds": 1, "eps": eps, "eps_by_trainer": by, "steps_by_trainer": by}
        for n, eps, by in lines
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in windows))
    text = report.table(run_folder(tmp_path), None, None)
    assert "the 8 slowest of 10 trainers (median 10 EPS): 0: 10 EPS, 10.0 steps/s; 1: " in text


def test_a_complete_run_without_evaluations_is_not_resumed(tmp_path):
    run_folder(tmp_path, evaluations={})
    with pytest.raises(DataError, match=r"ended \(complete\) before it was evaluated.*'ssmpi evaluate"):
        report.table(tmp_path, None, None)


def test_what_is_no_run_folder_says_what_is_missing(tmp_path):
    (tmp_path / "run.toml").write_text("")  # a user's own
    for place, says in (
        ("", "not a run folder: no versions.json in it"),
        ("run.toml", "a file; name a run folder"),
        ("none", "no such folder; name a run folder"),
    ):
        with pytest.raises(DataError, match=f"^{tmp_path / place}: {says}"):
            report.table(tmp_path / place, None, None)


def test_a_result_of_other_values_is_refused(tmp_path):
    for spoilt in ({"evaluations": []}, {"evaluations": {"test": {"last": 3}}}, {"examples": "many"}):
        with pytest.raises(DataError, match=r"result\.json: its values are not those that a run writes"):
            report.table(run_folder(tmp_path, **spoilt), None, None)
