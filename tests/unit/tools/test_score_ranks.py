"""What scoring a run asks for."""

import pytest

from ssmpi.runtime.errors import TopologyError
from ssmpi.state.checkpoint import model_files, saved_network, saved_tables
from ssmpi.state.checkpoint.data_origin import DataOrigin
from ssmpi.tools.score import open_run

SETTINGS = """
data.folder = "data"
sync.algorithm = "easgd"
topology = { trainers = 2, embedding_ps = 1, sync_ps = 1 }
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A finished run, as far as its settings go."""
    (tmp_path / "run.toml").write_text(SETTINGS)
    monkeypatch.setattr(model_files, "find", lambda run: run / model_files.MODEL)
    monkeypatch.setattr(saved_network, "of_model", lambda config, model, setting: config)
    monkeypatch.setattr(saved_tables, "with_room", lambda config, model, asked: config)
    monkeypatch.setattr(DataOrigin, "of_model", lambda folder, data: None)
    return tmp_path


def test_scoring_takes_one_process_or_the_trainers_and_embedding_pss(run):
    assert open_run(run, 1).config.topology.size == 1
    assert open_run(run, 3).config.topology.size == 3


@pytest.mark.parametrize("ranks", [2, 4])
def test_other_numbers_of_ranks_are_told_what_applies(run, ranks):
    with pytest.raises(TopologyError) as refused:
        open_run(run, ranks)
    assert str(refused.value) == (
        "'ssmpi evaluate' runs in one process, which holds all tables, or on the 3 ranks (2 trainer + 1 "
        f"embedding_ps) that this run had without sync PSs, got {ranks}: start it without mpirun, or with mpirun -n 3"
    )
