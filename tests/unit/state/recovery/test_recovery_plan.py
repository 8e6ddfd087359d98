"""What ``ssmpi plan --recovery`` says: inputs, formulas, figures, refusals."""

import math
import re

import pytest
from hypothesis import example, given
from test_recovery import EXAMPLE, HOUR, JOBS, ONCE

from ssmpi import cli
from ssmpi.state.recovery.policy import INPUTS, compare, full
from ssmpi.tools.recovery_plan import explain

COSTS = ("--save-seconds", "324", "--load-seconds", "180")  # the example's


def numbers_of(text):
    """The number and unit that a line ends with, in seconds or as a share."""
    size = {"ms": 1e-3, "s": 1, "min": 60, "h": HOUR, "%": 0.01}
    value, unit = re.search(r"([\d.,e+-]+) ?(ms|s|min|h|%)$", text).groups()
    return float(value.replace(",", "")) * size[unit]


def evaluated(formula, job, **more):
    """The value of a formula as ``policy`` and ``explain`` print it."""
    names = {known.symbol: getattr(job, name) for name, known in INPUTS.items()}
    names |= {"N": job.servers, "sqrt": math.sqrt, "T_full": full(job).interval, **more}
    return eval(re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula).replace("^", "**"), names)


@given(JOBS)
@example(EXAMPLE)
@example(ONCE)
def test_every_printed_formula_gives_the_printed_figure(job):
    found = compare(job)
    strategies = iter([found.full, found.naive, found.partial])
    checked = 0
    for line in explain(found):
        match = re.match(r"    (?:T_save = T_full|T_save|overhead) = (.*?) = (.*)", line)
        if match:
            formula, shown = match.groups()
            if "overhead" in line:
                value = evaluated(formula, job, T_save=next(strategies).interval)
            else:
                shown, value = shown.partition(", ")[0], evaluated(formula, job)
            assert numbers_of(shown) == pytest.approx(value, rel=6e-3), line
            checked += 1
    assert checked == 5


@pytest.fixture
def planned(tmp_path, capsys):
    """``planned(word, ...)`` is the exit code, what was printed and the errors of ``ssmpi plan`` with these words."""
    (tmp_path / "run.toml").write_text('[data]\nfolder = "none"\n')
    (tmp_path / "tables").write_text("100 " * 26)

    def plan(*words):
        with pytest.raises(SystemExit) as ended:
            cli.main(["plan", str(tmp_path / "run.toml"), "--tables", str(tmp_path / "tables"), *words])
        return ended.value.code or 0, *capsys.readouterr()

    return plan


def test_plan_states_its_inputs_and_decides(planned):
    code, text, _ = planned("--recovery", "topology.embedding_ps=18", "--target-pls", "0.02", *COSTS)
    assert code == 0
    assert re.search(r"T_total +56 h .*\(--job-hours\)", text)
    assert re.search(r"T_fail +28 h .*\(--mtbf-hours\)", text)
    assert re.search(r"N +18 .*\(topology.embedding_ps\)", text)
    assert re.search(r"O_save +5.4 min .*\(--save-seconds\)", text)
    assert re.search(r"O_rows +5.4 min .*\(--row-save-seconds\)", text)
    assert re.search(r"PLS +0.02 .*\(--target-pls\)", text)
    assert "T_total, T_fail and O_res come from an example unless an option or the run file sets them" in text
    assert "4.01 % + 4.33 % = 8.34 %" in text
    assert "decision: partial recovery, a save every 20.2 h" in text
    assert "it costs 0.768 % of the job" in text
    assert re.search(r"every_minutes = 30, with full recovery:\n.* = 18 % \+ 1.21 % = 19.2 %", text)
    assert "= 20.2 h: O_rows / T_save = 0.446 %, instead of T_ckpt / (2 T_fail) = 0.893 %" in text
    assert "'auto' saves rows between checkpoints, and goes back to a checkpoint if a loss would bring the PLS" in text
    _, text, _ = planned("--recovery", "topology.embedding_ps=18", "--target-pls", "0.0001", "--row-save-seconds", "4")
    assert "= 6.05 min: O_rows / T_save = 1.1 %" in text
    assert "'auto' saves rows only in checkpoints, " in text


def test_unknown_costs_follow_from_the_largest_embedding_ps(planned, tmp_path):
    """One table of 10 million rows, of 16 floats with one for their state, in two halves: 340 MB."""
    (tmp_path / "tables").write_text("10_000_000 ".replace("_", "") + "1 " * 25)
    code, text, _ = planned("--recovery", "topology.embedding_ps=2")
    assert code == 0
    assert "the largest embedding PS has 340 MB, written during training at 500 MB/s, else at 200 MB/s" in text
    assert re.search(r"O_save +680 ms .*\(--save-seconds\)", text)
    assert re.search(r"O_rows +680 ms .*\(--row-save-seconds\)", text)
    assert re.search(r"O_load +1.7 s .*\(--load-seconds\)", text)
    assert re.search(r"O_res +2.4 min .*\(--restart-seconds\)", text)
    _, text, _ = planned("--recovery", "topology.embedding_ps=2", "checkpoint.background=false")
    assert re.search(r"O_save +1.7 s ", text)
    assert re.search(r"O_rows +680 ms ", text)


def test_the_run_file_gives_inputs_and_options_override_them(planned):
    settings = ("topology.embedding_ps=18", "recovery.target_pls=0.02", "recovery.mtbf_hours=14", "recovery.mode=full")
    _, text, _ = planned("--recovery", *settings)
    assert re.search(r"T_fail +14 h ", text)
    assert re.search(r"PLS +0.02 ", text)
    assert "2 PLS N T_fail = 10.1 h" in text
    assert "but this run's recovery.mode = 'full': full recovery" in text
    _, text, _ = planned("--recovery", *settings[:-1], "--mtbf-hours", "28", "--target-pls", "0.05")
    assert re.search(r"T_fail +28 h ", text)
    assert "2 PLS N T_fail = 50.4 h" in text
    assert "this run's recovery.mode" not in text
    _, text, _ = planned("--recovery", *settings[:1], "recovery.mode=off")
    assert "recovery.mode = 'off': the job ends when ranks are killed" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target-pls", "0.001"), "loses no sample; partial recovery costs"),
        (("--mtbf-hours", "0.3", "--target-pls", "0.05"), "too often: T_save = 10 O_rows"),
        (("--mtbf-hours", "0.3", "--target-pls", "0.05"), "to keep the target PLS; one save of all rows takes 5.4 min"),
        (("--row-save-seconds", "18e3", "--target-pls", "0.02"), "T_save = 10 O_rows = 50 h"),
        (("--row-save-seconds", "18e3", "--target-pls", "0.02"), "T_save / (2 N T_fail) = 0.0496"),
        (("--mtbf-hours", "0.05",), "losses come faster than the job recovers from them"),
        (("--job-hours", "1e-6", "checkpoint.every_minutes=0"), "more than the job has: T_save = T_total"),
    ],
)  # fmt: skip
def test_plan_says_why(planned, words, said):
    code, text, _ = planned("--recovery", "topology.embedding_ps=18", *COSTS, *words)
    assert code == 0
    assert said in text
    assert ("every_minutes" in text) == ("checkpoint.every_minutes=0" not in words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *[(("--recovery", option, "nan"), f"{option} must be") for option in (i.option for i in INPUTS.values())],
        (("--recovery", "--target-pls", "1.5"), "--target-pls must be positive and at most 1, got 1.5"),
        (("--recovery", "--save-seconds", "0"), "--save-seconds must be positive"),
        (("--recovery", "--load-seconds", "-1"), "--load-seconds must be at least 0"),
        (("--recovery", "topology.embedding_ps=0"), "topology.embedding_ps = 0 keeps the tables in trainer 0"),
        (("--mtbf-hours", "10"), "--mtbf-hours is an input of --recovery"),
    ],
)
def test_wrong_inputs_are_one_message(planned, words, said):
    code, text, errors = planned(*words)
    assert (code, text) == (2, "")
    assert said in errors
    assert errors.count("error") == 1
