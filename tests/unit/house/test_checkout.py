"""What runs leave in a checkout does not matter to lint: README's two commands pass one after the other in one
clone.
"""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from setuptools import find_namespace_packages

PROJECT = Path(__file__).parents[3]
LEFT = ("runs/quickstart", "data/quickstart", "ranks", "oracle", "datasets", "my-runs/first", "env/lib", "ssmpi-runs")


@pytest.fixture
def checkout(tmp_path):
    """A copy of what is tracked, as far as ruff looks at it."""
    for name in ("ssmpi", "data_prep", "tests", "jobs"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.tmp*"))
    for name in ("pyproject.toml", ".gitignore"):
        shutil.copy(PROJECT / name, tmp_path)
    return tmp_path


def leave(checkout):
    """Folders with the names of the tests' modules, and Python that is not the project's."""
    for name in LEFT:
        (checkout / name).mkdir(parents=True)
        (checkout / name / "notes.py").write_text("import sys,os\n")


def lint(checkout, *words):
    ruff = Path(sys.executable).with_name("ruff")
    return subprocess.run([ruff, *words, "--no-cache", "."], cwd=checkout, capture_output=True, text=True)


def test_lint_sees_the_same_with_and_without_what_runs_leave(checkout):
    clean = [lint(checkout, *words) for words in (("check",), ("format", "--check"))]
    assert [done.returncode for done in clean] == [0, 0], clean
    leave(checkout)
    littered = [lint(checkout, *words) for words in (("check",), ("format", "--check"))]
    assert [done.stdout for done in littered] == [done.stdout for done in clean]
    (checkout / "ssmpi" / "new.py").write_text("import sys,os\n")
    assert lint(checkout, "check").returncode == 1, "what is ours is still looked at"


def test_no_folder_of_runs_is_packaged(checkout):
    leave(checkout)
    patterns = tomllib.loads((checkout / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"][
        "include"
    ]
    found = find_namespace_packages(str(checkout), include=patterns)
    assert {name.partition(".")[0] for name in found} == {"ssmpi", "data_prep"}
