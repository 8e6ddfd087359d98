"""The scripts in ``jobs``, with stand-ins for what they start: when they make an environment, and how they end."""

import itertools
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import hypothesis
import pytest

JOBS = Path(__file__).parents[3] / "jobs"
TOOLS = ("bash", "cat", "chmod", "cksum", "dirname", "env", "grep", "id", "mkdir", "mktemp", "rm", "timeout", "tr")
IDENTITY = "-c", "user.name=a", "-c", "user.email=a@b.c"
VENV = """#!/bin/sh
[ "$1" = -c ] && exit
echo "$@" >> "$LOG"
mkdir -p venv/bin && printf '#!/bin/sh\\necho pip >> "$LOG"\\n' > venv/bin/pip && chmod +x venv/bin/pip
"""


def command(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path):
    """A checkout without code, in a folder with a space. Its environment is up to date."""
    made = tmp_path / "a checkout"
    shutil.copytree(JOBS, made / "jobs", ignore=shutil.ignore_patterns("studies"))
    (made / "pyproject.toml").write_text("")
    command(made / "venv/bin/python", "exit 0")
    command(made / "venv/bin/pip", 'echo pip >> "$LOG"')
    command(made / "venv/bin/mpirun", "echo 2; echo 2")
    for tool in TOOLS:
        (tmp_path / "bin" / tool).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    stamped = start(made, "-c", ". jobs/common.sh; environment_stamp test > venv/.stamp")
    assert stamped.returncode == 0, stamped.stderr
    return made


def start(checkout, *words, **environ):
    """Run bash in the checkout without any Python on PATH; ``log`` beside it is what stand-ins note."""
    own = {"PATH": str(checkout.parent / "bin"), "LOG": str(checkout.parent / "log"), "VENV": "venv", **environ}
    return subprocess.run(["bash", *words], cwd=checkout, capture_output=True, text=True, env=own)


def noted(checkout):
    log = checkout.parent / "log"
    return log.read_text().splitlines() if log.exists() else []


def test_every_package_is_installed_in_the_version_that_was_tested():
    project = tomllib.loads((JOBS.parent / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[\[<>=, ]", requirement)[0] for requirement in wanted} - {project["name"]}
    pinned = {line.partition("==")[0] for line in (JOBS / "constraints.txt").read_text().splitlines() if "==" in line}
    assert names == pinned


def test_every_script_is_checked():
    asked = next(line for line in (JOBS / "test.sh").read_text().splitlines() if "shellcheck -x" in line).split()
    found = {path for words in asked for path in JOBS.parent.glob(words)}
    shells = {path for path in JOBS.rglob("*") if path.is_file() and path.read_bytes()[:19] == b"#!/usr/bin/env bash"}
    assert shells - found == set()


MAKE = "set -e; . jobs/common.sh; make_environment venv test; echo made"


def test_an_environment_that_is_up_to_date_is_left_alone(checkout):
    done = start(checkout, "-c", MAKE)
    assert (done.returncode, done.stdout) == (0, "made\n")
    assert not noted(checkout)


def test_the_environment_of_another_checkout_is_not_taken(checkout):
    """Its ``ssmpi`` is the other checkout's: tests passed or failed with code that was not there."""
    other = checkout.with_name("another checkout")
    shutil.copytree(checkout, other)
    assert start(other, "-c", MAKE).returncode == 0
    assert noted(other) == ["pip", "pip"]  # torch, then the rest


def test_an_environment_that_was_not_finished_is_made_again(checkout):
    """Debian's Python leaves one without pip where python3-venv is missing."""
    (checkout / "venv/bin/pip").unlink()
    (checkout / "venv/.stamp").unlink()
    command(checkout.parent / "bin/python3", VENV)
    done = start(checkout, "-c", MAKE)
    assert done.returncode == 0, done.stderr
    assert noted(checkout) == ["-m venv venv", "pip", "pip"]


def test_without_python_a_script_says_so_and_ends(checkout):
    """It went on with an empty command."""
    shutil.rmtree(checkout / "venv")
    done = start(checkout, "jobs/quickstart.sh", "--venv", "venv")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: no python 3.11 or newer found")


def test_folders_are_those_of_where_a_script_was_started(checkout):
    """Data went into the checkout. The few rows that compile kernels are elsewhere."""
    command(checkout / "venv/bin/ssmpi-prepare", 'case $2 in */raw) ;; *) echo "$2" >> "$LOG" ;; esac; exit 3')
    (checkout / "elsewhere").mkdir()
    words = "--venv", "../venv", "--data", "my data"
    done = start(checkout, "-c", 'cd elsewhere && exec bash ../jobs/quickstart.sh "$@"', "bash", *words)
    assert done.returncode == 3, done.stderr
    assert noted(checkout) == ["pip", "pip", f"{checkout}/elsewhere/my data/raw-1200000"]


def test_tables_of_another_size_are_other_data(checkout):
    """The study's data were known by their skew alone: with other sizes in the script the old ones were taken."""
    (checkout / "jobs/studies").mkdir()
    text = (JOBS / "studies/recovery.sh").read_text()
    command(checkout.parent / "bin/ssmpi-prepare", 'echo "$1 $2" >> "$LOG"')
    command(checkout.parent / "bin/python", "exit 0")
    for rows in (3000, 2000):
        (checkout / "jobs/studies/recovery.sh").write_text(text.replace("study 0.6 3000 ", f"study 0.6 {rows} "))
        done = start(checkout, "jobs/studies/recovery.sh", "my data")
        assert done.returncode == 0, done.stderr
        (checkout / f"my data/0.6-{rows}/shards").mkdir(parents=True)
        (checkout / f"my data/0.6-{rows}/shards/manifest.json").touch()
    made = [line for line in noted(checkout) if line.startswith("synthesize my data/0.6")]
    assert made == ["synthesize my data/0.6-3000/raw", "synthesize my data/0.6-2000/raw"]


@pytest.mark.parametrize(
    ("soaked", "kills", "code"),
    [(0, 0, 0), (0, 5, 0), (5, 0, 0), (1, 0, 1), (0, 1, 1), (1, 5, 1), (5, 5, 2)],
)
def test_soak_fails_if_a_test_did_and_if_none_ran(checkout, soaked, kills, code):
    """pytest's 5 is that nothing was selected: ``-k random_kills``, of jobs/guide/recovery.md, always failed."""
    command(checkout / "venv/bin/pytest", f'case "$*" in *"-m soak"*) exit {soaked} ;; esac; exit {kills}')
    done = start(checkout, "jobs/soak.sh", "-k", "random_kills")
    assert done.returncode == code, done.stderr


def test_soak_repeats_properties_by_printed_seeds(checkout):
    command(checkout / "venv/bin/pytest", 'echo "$*" >> "$LOG"')
    done = start(checkout, "jobs/soak.sh", "--rounds", "2", "-x")
    seeds = re.findall(r"\+ pytest -rfE -m hypothesis .*--hypothesis-seed (\d+) -x", done.stderr)
    assert len(set(seeds)) == 2
    assert re.findall(r"--hypothesis-seed (\d+)", "\n".join(noted(checkout))) == seeds


def test_examples_are_random_and_many_in_soak_alone():
    ci, soak = (hypothesis.settings.get_profile(name) for name in ("ssmpi", "soak"))
    assert (ci.max_examples, soak.max_examples) == (50, 500)
    assert (ci.derandomize, soak.derandomize) == (True, False)
    assert soak.database is None  # else the seed that is printed does not repeat a run


def test_slurm_tests_that_cannot_run_are_no_success(checkout):
    done = start(checkout, "jobs/test_slurm.sh")
    assert "NO SLURM TESTS" in done.stderr
    assert done.returncode == 2


def test_sizes_count_lines_and_files_and_say_what_a_commit_has_changed(tmp_path):
    """Without history, as in an archive or a shallow clone, there are no differences."""
    (tmp_path / "ssmpi/bench").mkdir(parents=True)
    for place in ("jobs", "data_prep", "tests"):
        (tmp_path / place).mkdir()
    shutil.copy(JOBS / "sizes.py", tmp_path / "jobs")

    def table():
        done = subprocess.run(
            [sys.executable, "jobs/sizes.py"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return [line.split() for line in done.stdout.splitlines()]

    def commit():
        for words in (["add", "."], ["commit", "-qm", "x"]):
            subprocess.run(["git", *IDENTITY, *words], cwd=tmp_path, check=True)

    (tmp_path / "ssmpi/a.py").write_text("1\n2\n")
    (tmp_path / "ssmpi/bench/b.py").write_text("1\n")
    assert table()[:3] == [["lines", "files"], ["bench", "1", "1"], ["product", "2", "1"]]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit()
    assert table()[2] == ["product", "2", "1"]
    (tmp_path / "ssmpi/a.py").write_text("1\n2\n3\n4\n5\n")
    commit()
    assert table()[1:3] == [["bench", "1", "1", "+0"], ["product", "5", "1", "+3"]]
