"""README's first command, on few rows and in the environment that there is: what it prints and leaves, and that the
second command's lint then sees what it saw before.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import PATIENCE, Running, full_environment, python_path

PROJECT = Path(__file__).parents[2]
ROWS = 7_000
EXTRAS = "tensorboard,plots,baseline"  # of quickstart.sh

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A clone, as links: compiled code is found again. Its ``.venv`` is this interpreter's, which is up to date."""
    checkout = tmp_path_factory.mktemp("clone")
    for name in ("ssmpi", "data_prep", "jobs", "tests", "pyproject.toml", ".gitignore"):
        (checkout / name).symlink_to(PROJECT / name)
    (checkout / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != ".stamp":
            (checkout / ".venv" / path.name).symlink_to(path)
    words = f"set -e; . jobs/common.sh; environment_stamp {EXTRAS} > .venv/.stamp"
    subprocess.run(["bash", "-c", words], cwd=checkout, check=True)
    return checkout


@pytest.fixture(scope="module")
def quickstart(checkout):
    """The script's end."""
    environ = full_environment({"PYTHONPATH": python_path(checkout)})
    job = Running(["bash", str(checkout / "jobs" / "quickstart.sh"), "--rows", str(ROWS)], environ)
    try:
        return job.wait(2 * PATIENCE)
    finally:
        job.close()


def test_it_trains_a_model_and_prints_it_beside_reference_points(quickstart, checkout):
    table = quickstart.check().out.partition("test: 500 rows\n")[2].splitlines()
    names = ("constant", "logistic regression", "boosted trees", "this run", "teacher (the ceiling)")
    scores = {name: next(float(line.split()[-4]) for line in table if line.startswith(name)) for name in names}
    assert scores["teacher (the ceiling)"] < scores["this run"] < scores["constant"] * 1.05
    assert "pip install" not in quickstart.err
    run = checkout / "runs" / "quickstart"
    assert json.loads((run / "result.json").read_text())["examples"] == 6_000
    assert (run / "plot.png").is_file()
    assert f"run folder: {run.relative_to(checkout)}" in quickstart.out


def test_what_it_leaves_changes_nothing_for_lint(quickstart, checkout, tmp_path):
    quickstart.check()
    left = [path for path in checkout.iterdir() if not path.is_symlink()]
    assert {path.name for path in left} == {".venv", "data", "runs"}
    clone = tmp_path / "clone"
    for name in ("ssmpi", "data_prep", "jobs", "tests"):
        shutil.copytree(PROJECT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__", "*.tmp*"))
    shutil.copy(PROJECT / "pyproject.toml", clone)
    for path in left:
        (clone / path.name).symlink_to(path)
    for words in (("check",), ("format", "--check")):
        ruff = Path(sys.executable).with_name("ruff")
        done = subprocess.run([ruff, *words, "--no-cache", "."], cwd=clone, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
