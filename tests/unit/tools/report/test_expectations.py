"""A run beside published numbers: what is on course, what is not, and the exit code; the files that are shipped."""

import json
from pathlib import Path

import pytest

from ssmpi.cli import main
from ssmpi.config import load
from ssmpi.data.features import CRITEO, Features
from ssmpi.runtime import settings
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.tools.report import course
from ssmpi.tools.report.expectations import Expectations

CONFIGS = Path(__file__).parents[4] / "jobs" / "configs"
SPARSE = {"criteo_x4": 39, "avazu_x4": 24}


def run_folder(tmp_path, *auc, split="validation", result=True):
    """Four passes of 1,000 examples, two evaluations in each; in files, None stands for NaN."""
    (tmp_path / "run.toml").write_text("[data]\nfolder = 'data'\npasses = 4\n[evaluate]\nper_pass = 2\n")
    lines = [{"kind": "train", "examples": 500, "seconds": 1.0}]
    for number, value in enumerate(auc, 1):
        line = {"kind": "evaluation", "weights": "model", "split": split, "examples": 500 * number, "seconds": 1.0}
        lines.append({**line, "auc": value, "log_loss": 0.4})
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    body = {"status": "complete", "examples": 4_000, "expected_examples": 4_000, "eps": 1.0}
    if result:
        scored = {"rows": 10.0, "auc": 0.85, "ne": 0.8, "log_loss": 0.4, "accuracy": 0.8}
        (tmp_path / "result.json").write_text(json.dumps({**body, "evaluations": {"test": {"last": scored}}}))
    return tmp_path


def write(tmp_path, text, source="a paper"):
    path = tmp_path / "expect.toml"
    path.write_text(f'source = "{source}"\n{text}')
    return path


PASSES = "tolerance = 0.01\n[passes]\n1 = 0.7\n2 = 0.8\n3 = 0.9\n"


@pytest.mark.parametrize(
    ("auc", "text", "verdicts", "well"),
    [
        ((0.1, 0.709, 0.1, 0.791), PASSES, ["on course", "on course", "not reached"], True),
        ((0.1, 0.72, 0.1, 0.78, 0.1, 0.9), PASSES, ["better", "worse", "on course"], False),
        ((0.7, None), PASSES, ["worse", "not reached", "not reached"], False),
        ((), f"final = 0.85\n{PASSES}", ["not reached"] * 3 + ["on course"], True),
        ((0.1, 0.1), 'metric = "log_loss"\n[passes]\n1 = 0.39', ["worse"], False),
        ((0.1, 0.1), 'metric = "log_loss"\n[passes]\n1 = 0.41', ["better"], True),
    ],
)
def test_each_pass_is_compared_where_it_ended(tmp_path, auc, text, verdicts, well):
    said, on_course = course(run_folder(tmp_path, *auc), write(tmp_path, text))
    first, _, *lines = said.splitlines()
    assert first == "expected: a paper"
    assert [line.split("  ")[-1] for line in lines] == verdicts
    assert on_course == well


def test_a_run_that_is_going_on_is_compared_up_to_now(tmp_path):
    """By the examples of its data, which are not there either."""
    run, file = run_folder(tmp_path, 0.1, 0.7, result=False), write(tmp_path, PASSES)
    with pytest.raises(DataError, match="neither its result nor its data says how many examples a pass has"):
        course(run, file)
    scores = {"test": {"last": {"auc": 0.6}, "best": {"auc": 0.6}}}  # of the best model up to now
    stopped = {"status": "stopped", "examples": 1_000, "expected_examples": 4_000, "evaluations": scores}
    (run / "result.json").write_text(json.dumps(stopped))
    said, on_course = course(run, write(tmp_path, f"final = 0.85\n{PASSES}"))
    assert said.splitlines()[-1] == "test           0.85000         -           -  not yet"
    assert said.splitlines()[2] == "pass 1         0.70000   0.70000    +0.00000  on course"
    assert said.splitlines()[3] == "pass 2         0.80000         -           -  not yet"
    assert on_course
    with pytest.raises(DataError, match=r"no evaluation of 'test' yet after a pass that .*expect\.toml names"):
        course(run, write(tmp_path, f'split = "test"\n{PASSES}'))


@pytest.mark.parametrize(("value", "code"), [(0.7, 0), (0.6, 1)])
def test_the_exit_code_says_whether_a_run_is_on_course(tmp_path, capsys, value, code):
    run, file = run_folder(tmp_path, 0.1, value), write(tmp_path, PASSES)
    with pytest.raises(SystemExit) as ended:
        main(["summary", str(run), "--expect", str(file)])
    assert ended.value.code == code
    assert "expected: a paper" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[passes]\nfirst = 0.8", r"passes\.first: write the number of a pass, from 1"),
        ('metric = "acu"\n[passes]\n1 = 0.8', "did you mean 'auc'"),
        ("", "passes.* is required"),
    ],
)
def test_a_file_that_says_nothing_is_refused(tmp_path, text, message):
    with pytest.raises(SettingsError, match=rf"expect\.toml: .*{message}"):
        course(tmp_path, write(tmp_path, text))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_files_load_and_give_a_network(path):
    if path.suffixes == [".expect", ".toml"]:
        assert settings.load(Expectations, path).passes
        assert path.with_name(path.name.replace(".expect", "")).is_file()
        return
    sparse = SPARSE.get(path.stem, 26)
    features = Features.numbered(0, sparse) if path.stem in SPARSE else CRITEO
    load(path).over(features)
