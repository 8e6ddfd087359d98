"""A run from Python with real ranks, in a process that never enters MPI."""

import sys

import numpy as np
import pytest
from datasets import make_dataset
from ranks import WITHOUT_EXTRAS, python_path
from runs import QUIET, SMALL_MODEL

from ssmpi import Run
from ssmpi.data.reader import SplitReader
from ssmpi.runtime.errors import UserError


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A run file, and its data."""
    monkeypatch.setenv("PYTHONPATH", python_path(*WITHOUT_EXTRAS))
    data = make_dataset(tmp_path / "data", 3_000)
    (tmp_path / "run.toml").write_text(f'data.folder = "{data}"\nsync.algorithm = "easgd"\ntopology.sync_ps = 1\n')
    return tmp_path, data


def test_it_gives_result_metrics_and_scores(given, capsys):
    folder, data = given
    sync, topology = {"algorithm": "none"}, {"sync_ps": 0}
    run = Run(folder / "run.toml", *SMALL_MODEL, *QUIET, f"run.folder={folder}/run", sync=sync, topology=topology)
    assert "1 trainer" in run.plan()
    done = run.launch()
    assert "complete: 3,000 examples" in capsys.readouterr().out
    assert (done.result["status"], done.result["examples"]) == ("complete", 3_000)
    final = done.result["evaluations"]["test"]["last"]
    np.testing.assert_array_equal(done.metrics["evaluation"]["ne"][-1], final["ne"])
    labels, probabilities = Run.open(folder / "run").scores()
    reader = SplitReader(data, "test", 1_000)
    np.testing.assert_array_equal(labels, reader.read(reader.blocks[0]).labels)
    log_loss = -np.mean(np.log(np.where(labels == 1, probabilities, 1 - probabilities)))
    assert log_loss == pytest.approx(final["log_loss"], abs=1e-6)
    with pytest.raises(UserError, match="run: "):
        run.launch(quiet=True)
    assert "mpi4py.MPI" not in sys.modules or not sys.modules["mpi4py.MPI"].Is_initialized()
