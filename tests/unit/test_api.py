"""Runs from Python without ranks: settings, records, errors, interrupts. With: ``mpi/test_run_from_python.py``."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ssmpi
from ssmpi import Result, Run, api
from ssmpi.config import load
from ssmpi.runtime.errors import DataError, LaunchError, SettingsError, UserError


@pytest.fixture
def run_file(tmp_path):
    (tmp_path / "run.toml").write_text("data.folder = 'data'\nsync.algorithm = 'easgd'\ntopology.sync_ps = 1\n")
    return tmp_path / "run.toml"


def test_sections_are_settings_as_on_the_command_line(run_file):
    sections = {
        "run": {"folder": run_file.parent / "a run", "tensorboard": False},
        "model": {"bottom": [32, 16], "top": (8, 1), "deepfm": {"deep": [5]}, "top_k": ["top.0: 0.5"]},
        "dense": {"rate": 1e-05},
        "sync": {"algorithm": "ma"},
        "topology": {"trainers": 2, "sync_ps": 0},
    }
    run = Run(run_file, "data.passes=2", **sections)
    found = load(run_file, run.overrides)
    assert run.folder == Path(found.run.folder) == run_file.parent / "a run"
    assert (found.model.bottom, found.model.top, found.model.deepfm.deep) == ((32, 16), (8, 1), (5,))
    assert (found.data.passes, found.dense.rate, found.sync.algorithm) == (2, 1e-5, "ma")
    assert found.model.top_k == ("top.0: 0.5",)
    assert not found.run.tensorboard


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"sync": {"algoritm": "ma"}}, "override 'sync.algoritm=\"ma\"': unknown key 'sync.algoritm'; did you mean"),
        ({"sync": "ma"}, "sync='ma': a section is a mapping of its keys"),
        ({"data": {"passes": None}}, "data.passes = None: a run file has no such values"),
        ({"data": {"passes": 0}}, "data.passes must be at least 1"),
    ],
)
def test_wrong_settings_are_said_at_once(run_file, sections, says):
    with pytest.raises(SettingsError) as refused:
        Run(run_file, **sections)
    assert says in str(refused.value)


def test_metrics_are_arrays_by_kind_and_field(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"kind": "train", "examples": 10, "ne": 0.9}\n{"kind": "train", "examples": 20, "ne": null, "eps": 5.5}\n'
        '{"kind": "evaluation", "split": "test", "ne": 0.8}\n{"kind": "train", "exam'
    )
    found = Result(tmp_path).metrics
    assert {kind: list(fields) for kind, fields in found.items()} == {
        "train": ["examples", "ne", "eps"],
        "evaluation": ["split", "ne"],
    }
    np.testing.assert_array_equal(found["train"]["examples"], [10, 20])
    np.testing.assert_array_equal(found["train"]["ne"], [0.9, np.nan])
    np.testing.assert_array_equal(found["train"]["eps"], [np.nan, 5.5])
    assert found["train"]["eps"].dtype == np.float64
    assert found["evaluation"]["split"].tolist() == ["test"]


def test_only_a_run_folder_is_opened(tmp_path):
    with pytest.raises(DataError, match=r"not a run folder: no run\.toml in it"):
        Run.open(tmp_path)
    (tmp_path / "run.toml").touch()
    with pytest.raises(DataError, match=r"result\.json: no such file"):
        _ = Run.open(tmp_path).result


def pretend(monkeypatch, text):
    """Instead of any command, this program."""
    monkeypatch.setattr(api, "PYTHON", (sys.executable, "-c", text))


@pytest.mark.parametrize(("code", "kind"), [(2, UserError), (1, LaunchError), (85, LaunchError), (86, LaunchError)])
def test_a_failed_command_is_an_exception_with_its_message(monkeypatch, run_file, capsys, code, kind):
    words = "error: trainer 0 has lost its way"
    text = "import sys; print('+ mpirun', flush=True); print({!r}, file=sys.stderr); print('more'); sys.exit({})"
    pretend(monkeypatch, text.format(words, code))
    with pytest.raises(kind) as failed:
        Run(run_file).launch()
    assert str(failed.value) == "trainer 0 has lost its way\nmore"
    assert capsys.readouterr().out.splitlines() == ["+ mpirun", words, "more"]
    pretend(monkeypatch, f"import sys; sys.exit({code})")
    with pytest.raises(kind, match=f"'ssmpi launch' ended with exit code {code}"):
        Run(run_file).launch(quiet=True)


def test_an_interrupt_stops_the_run_and_waits_until_it_is_saved(monkeypatch, run_file, tmp_path):
    saved = tmp_path / "saved"
    stop = f"lambda *_: (time.sleep(0.1), pathlib.Path({str(saved)!r}).touch(), sys.exit(85))"
    text = f"import pathlib, signal, sys, time; signal.signal(2, {stop}); print('training', flush=True); time.sleep(60)"
    pretend(monkeypatch, text)

    def interrupt(line):
        assert line == "training"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api._call(["launch", run_file], interrupt)
    assert saved.exists()


def test_the_package_is_imported_without_any_other():
    """Commands and ranks import it first."""
    text = "import sys, ssmpi; sys.exit(bool({'numpy', 'mpi4py', 'torch'} & set(sys.modules)) or not ssmpi.__version__)"
    assert subprocess.run([sys.executable, "-P", "-c", text], check=False).returncode == 0
    assert ssmpi.Run is Run
    with pytest.raises(AttributeError, match="has no attribute 'run_all'"):
        _ = ssmpi.run_all
