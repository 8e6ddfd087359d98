"""Wrong settings, folders and data end a job before it trains, with one message that says what to do. Three jobs are
started: for what the first rank refuses, what the command line does, and what MPI does; the rest is refused in this
process, by what the first rank and 'ssmpi launch' call.
"""

import contextlib
import os
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
from ranks import PATIENCE
from training_job import ONE_TRAINER, SETTINGS, assert_names

from ssmpi import cli
from ssmpi.cluster import child_process
from ssmpi.data.schema import read_manifest, write_manifest
from ssmpi.runtime.errors import UserError
from ssmpi.state import resume
from ssmpi.state.request import RunRequest


@pytest.fixture
def refused(tmp_path, data):
    """``refused(*overrides)``: what the first rank of two, or of ``ranks``, says before training."""

    def words(*overrides, ranks=2):
        (tmp_path / "given.toml").write_text(SETTINGS)
        places = (f"data.folder={data}", f"run.folder={tmp_path / 'run'}")
        with contextlib.ExitStack() as held, pytest.raises(UserError) as error:
            resume.prepare(RunRequest(tmp_path / "given.toml", (*places, *overrides)), ranks, held)
        return str(error.value)

    return words


# Wrong settings


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sync.alhpa=0.5", "unknown key 'sync.alhpa'; did you mean 'alpha'?"),
        ("model.bottom=[32,8]", "model.bottom ends in 8, but embedding.dim = 16"),
    ],
)
def test_wrong_settings_are_refused_with_the_arithmetic(refused, override, words):
    assert words in refused(*ONE_TRAINER, override)


def test_another_number_of_ranks_is_refused_with_the_arithmetic(start):
    words = "needs 4 ranks (3 trainer + 1 embedding_ps), got 2: start it with mpirun -n 4"
    assert_names(start(*ONE_TRAINER, "topology.trainers=3", ranks=2).error(PATIENCE), "trainer 0", 0, words)


def test_a_typo_on_the_command_line_is_said_once(start):
    assert "unrecognized arguments: --overwrit" in start(*ONE_TRAINER, "--overwrit", ranks=2).error(PATIENCE)


def test_one_process_is_told_how_to_start_several(refused):
    assert "got 1: start it with mpirun -n 2, or let 'ssmpi launch' do that" in refused(*ONE_TRAINER, ranks=1)


def test_a_launcher_that_does_not_fit_the_library_is_refused(start):
    launched = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}
    text = start(*ONE_TRAINER, environ=launched).error(PATIENCE)
    assert "srun started 2 ranks but MPI sees 1" in text
    assert "each rank would run as a separate job" in text
    assert "srun --mpi=pmix" in text


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sync.alhpa=0.5", "did you mean 'alpha'?"),
        ("sync.pace=fixed_rate", "stops all threads of a trainer for a round of sync.algorithm = 'ma'"),
        ('hierarchy.tags=["top.*: 2", "*: home"]', "topology.group = 2 has members 0 to 1: name one of them"),
        ('hierarchy.tags=["top.9: 1", "*: home"]', "rule 'top.9: 1' matches no operator"),
        ('hierarchy.tags=["top.*: columns", "*: home"]', "'columns' is not a place"),
        ("topology.trainers=3", "topology.trainers = 3 is not a multiple of topology.group = 2"),
    ],
)
def test_launch_refuses_before_it_starts_anything(tmp_path, data, monkeypatch, capsys, override, words):
    started = []
    monkeypatch.setattr(child_process, "start", started.append)
    (tmp_path / "given.toml").write_text(SETTINGS)
    group = ("topology.trainers=2", "topology.group=2", "sync.algorithm=ma", "sync.every_iterations=2")
    with pytest.raises(SystemExit) as left:
        cli.main(["launch", str(tmp_path / "given.toml"), f"data.folder={data}", *group, override])
    assert left.value.code == 2
    said = capsys.readouterr()
    assert words in said.err
    assert "mpirun" not in said.err + said.out
    assert not started


# Wrong folders and data


def test_a_run_that_cannot_be_continued_leaves_no_folder(refused, tmp_path):
    text = refused(*ONE_TRAINER, f"run.continue_from={tmp_path / 'nowhere'}")
    assert "nowhere: no such folder; name a run folder" in text
    assert not (tmp_path / "run").exists()


def test_a_run_folder_in_use_is_left_alone(refused, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").touch()
    assert "not empty and not a run folder; choose another run.folder" in refused(*ONE_TRAINER)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


def test_a_run_folder_that_cannot_be_made_is_named(refused):
    text = refused(*ONE_TRAINER, "run.folder=/proc/1/task/run")
    assert "/proc/1/task/run" in text
    assert "choose another" in text


def second_shard(data):
    return data / "train" / "shard-00001.h5"


def lose_folder(data):
    shutil.rmtree(data)


def lose_manifest(data):
    (data / "manifest.json").unlink()


def lose_labels(data):
    write_manifest(data, replace(read_manifest(data), labelled=False))


def lose_shard(data):
    second_shard(data).unlink()


def cut_shard(data):
    os.truncate(second_shard(data), 5_000)


def swap_shard(data):
    with h5py.File(data / "train" / "shard-00000.h5", "w") as other:
        other["something"] = np.arange(10)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lose_folder, ("no such data folder", "ssmpi-prepare criteo", "ssmpi-prepare table --schema")),
        (lose_manifest, ("manifest.json: missing", "run the same 'ssmpi-prepare' command again")),
        (lose_labels, ("no labels; train on a labelled set",)),
        (lose_shard, ("shard-00001.h5: shard is in the manifest but not on disk", "restore intact copies")),
        (cut_shard, ("shard-00001.h5: 5,000 bytes, the manifest says", "prepare the data again")),
        (swap_shard, ("shard-00000.h5", "not this data set's", "prepare the data again")),
    ],
)
def test_spoiled_data_is_named(refused, data, spoil, words):
    spoil(data)
    text = refused(*ONE_TRAINER)
    for word in words:
        assert word in text
