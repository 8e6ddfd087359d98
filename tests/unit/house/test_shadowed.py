"""The folder that a command is started in may hold anything, a clone of ssmpi or a torch.py: no rank and no helper
imports it.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.lab.study import cell
from ssmpi.bench import data, jobs
from ssmpi.cluster import launch
from ssmpi.runtime.errors import DataError
from ssmpi.state.request import RunRequest

JOBS = Path(__file__).parents[3] / "jobs"
PACKAGES = ("ssmpi", "data_prep", "mpi4py", "torch", "numpy")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, in which everything that ssmpi imports is shadowed."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    return tmp_path


def ended(command):
    """What the ranks of a command would import, instead of starting any: it is started without the launcher's words."""
    return subprocess.run(command[command.index(sys.executable) :], capture_output=True, text=True, timeout=120)


def test_ranks_are_the_installed_ones(here):
    request = RunRequest(Path("nowhere.toml"), ())
    assert "nowhere.toml: no such run file" in ended(launch.rank_command(request)).stderr


def test_measured_ranks_are_the_installed_ones(here):
    done = ended(jobs.rank_line(2, "-c", "import ssmpi; print(ssmpi.__file__)"))
    assert not Path(done.stdout.strip()).is_relative_to(here), done.stderr
    assert done.returncode == 0


def test_helpers_are_the_installed_ones(here):
    with pytest.raises(DataError, match="nowhere") as found:
        data.prepare("verify", "nowhere")
    assert "shadowed" not in str(found.value)


def test_cells_of_a_study_are_started_with_the_installed_one(here):
    with (here / "lock").open("w") as lock:
        where = cell.CellFiles(here, Path("nowhere.toml"), here / "log", here / "lock")
        assert cell._launched(where, 60, lock, "") == 2
    assert "nowhere.toml: no such run file" in (here / "log").read_text()


@pytest.mark.parametrize("script", [*JOBS.glob("*.sh"), *JOBS.glob("*.sbatch")], ids=lambda path: path.name)
def test_scripts_start_no_python_that_imports_from_the_current_folder(script):
    found = re.findall(r"\bpython -[cm].*", script.read_text())
    assert not found
