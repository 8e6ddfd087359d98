"""Which code a run ran with, as far as git knows."""

import inspect
import json
import subprocess
from pathlib import Path

import pytest
from runs import write_run_file

import ssmpi
from ssmpi.runtime.host import versions
from ssmpi.state import run_folder


def git(place, *words):
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    done = subprocess.run(["git", "-C", str(place), *who, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path):
    """A package in a git checkout, with a file beside it that is none of its."""
    package = tmp_path / "checkout" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git(package.parent, "init", "-q")
    git(package.parent, "add", "package")
    git(package.parent, "commit", "-qm", "one")
    (package.parent / "notes.txt").write_text("not in the package")
    return package


def test_a_package_in_a_checkout_has_a_commit(package, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))  # as in a hook
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    found = versions.commit(package)
    monkeypatch.undo()
    assert found == git(package, "rev-parse", "HEAD")[: versions.DIGITS]


@pytest.mark.parametrize("name", ["__init__.py", "new.py"])
def test_a_changed_package_is_modified(package, name):
    (package / name).write_text("x = 1\n")
    assert versions.commit(package).endswith(", modified")


def test_an_installed_package_has_none(package, monkeypatch, tmp_path):
    """Also in the virtual environment of somebody else's checkout, and without git."""
    (tmp_path / "installed").mkdir()
    assert versions.commit(tmp_path / "installed") == ""
    other = package.parent / "venv" / "package"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    assert versions.commit(other) == ""
    monkeypatch.setenv("PATH", "")
    versions.commit.cache_clear()
    assert versions.commit(package) == ""


@pytest.mark.parametrize("commit", ["3d04bdb2a1c0, modified", ""])
def test_a_run_records_it(tmp_path, small_data, monkeypatch, commit):
    monkeypatch.setattr(versions, "commit", lambda: commit)
    config = write_run_file(tmp_path, small_data)
    run_folder.make(tmp_path / "run", config, overwrite=False)
    found = json.loads((tmp_path / "run" / "versions.json").read_text())
    assert found.get("commit", "") == commit


def test_it_asks_about_the_whole_package():
    (package,) = inspect.signature(versions.commit).parameters.values()
    assert package.default == Path(ssmpi.__file__).parent
