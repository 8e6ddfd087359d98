"""Wrong settings, folders and data end a job before it trains, with one message that says what to do."""

import os
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
from ranks import PATIENCE
from training_job import ONE_TRAINER, assert_names

from ssmpi.data.schema import read_manifest, write_manifest

# Wrong settings


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sync.alhpa=0.5", "unknown key 'sync.alhpa'; did you mean 'alpha'?"),
        ("model.bottom=[32,8]", "model.bottom ends in 8, but embedding.dim = 16"),
        ("topology.trainers=3", "needs 4 ranks (3 trainer + 1 embedding_ps), got 2: start it with mpirun -n 4"),
    ],
)
def test_wrong_settings_are_refused_with_the_arithmetic(start, override, words):
    assert_names(start(*ONE_TRAINER, override, ranks=2).error(PATIENCE), "trainer 0", 0, words)


def test_a_typo_on_the_command_line_is_said_once(start):
    assert "unrecognized arguments: --overwrit" in start(*ONE_TRAINER, "--overwrit", ranks=2).error(PATIENCE)


def test_one_process_is_told_how_to_start_several(start):
    assert "got 1: start it with mpirun -n 2, or let 'ssmpi launch' do that" in start(*ONE_TRAINER).error(PATIENCE)


def test_a_launcher_that_does_not_fit_the_library_is_refused(start):
    launched = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}
    text = start(*ONE_TRAINER, environ=launched).error(PATIENCE)
    assert "srun started 2 ranks but MPI sees 1" in text
    assert "each rank would run as a separate job" in text
    assert "srun --mpi=pmix" in text


def test_launch_refuses_a_typo_before_it_starts_anything(start):
    text = start("sync.alhpa=0.5", program=("-m", "ssmpi", "launch")).error(PATIENCE)
    assert "did you mean 'alpha'?" in text


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sync.pace=fixed_rate", "stops all threads of a trainer for a round of sync.algorithm = 'ma'"),
        ("sync.warmup_steps=5", "set sync.warmup_steps = 0, or topology.group = 1"),
        ('hierarchy.tags=["top.*: 2", "*: home"]', "topology.group = 2 has members 0 to 1: name one of them"),
        ('hierarchy.tags=["top.9: 1", "*: home"]', "rule 'top.9: 1' matches no operator"),
        ('hierarchy.tags=["top.*: columns", "*: home"]', "fewer columns (1) than the group has members (2)"),
        ("topology.trainers=3", "topology.trainers = 3 is no multiple of topology.group = 2"),
    ],
)
def test_launch_refuses_what_groups_cannot_do_before_it_starts_anything(start, override, words):
    group = ("topology.trainers=2", "topology.group=2", "sync.algorithm=ma", "sync.every_iterations=2")
    code, output = start(*group, override, program=("-m", "ssmpi", "launch")).end(PATIENCE)
    assert code == 2, output
    assert words in output
    assert "mpirun" not in output


# Wrong folders and data


def test_a_run_that_cannot_be_continued_leaves_no_folder(start, tmp_path):
    text = start(*ONE_TRAINER, "--continue-from", tmp_path / "nowhere", ranks=2).error(PATIENCE)
    assert_names(text, "trainer 0", 0, "nowhere: no such folder; name a run folder")
    assert not (tmp_path / "run").exists()


def test_a_run_folder_in_use_is_left_alone(start, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").touch()
    text = start(*ONE_TRAINER, ranks=2).error(PATIENCE)
    assert_names(text, "trainer 0", 0, "not empty and not a run folder; choose another run.folder")


def test_a_run_folder_that_cannot_be_made_is_named(start):
    text = start(*ONE_TRAINER, "run.folder=/proc/1/task/run", ranks=2).error(PATIENCE)
    assert_names(text, "trainer 0", 0, "/proc/1/task/run", "choose another")


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


def truncate_shard(data):
    os.truncate(second_shard(data), 5_000)


def swap_shard(data):
    with h5py.File(data / "train" / "shard-00000.h5", "w") as other:
        other["something"] = np.arange(10)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lose_folder, ("no such data folder", "ssmpi-prepare criteo")),
        (lose_manifest, ("manifest.json: missing", "run the same 'ssmpi-prepare criteo' again")),
        (lose_labels, ("no labels; train on a labelled set",)),
        (lose_shard, ("shard-00001.h5: shard is in the manifest but not on disk", "put a whole copy here")),
        (truncate_shard, ("shard-00001.h5: 5,000 bytes, the manifest says", "prepare the data again")),
        (swap_shard, ("shard-00000.h5", "not this data set's", "prepare the data again")),
    ],
)
def test_spoiled_data_is_named(start, data, spoil, words):
    spoil(data)
    assert_names(start(*ONE_TRAINER, ranks=2).error(PATIENCE), "trainer 0", 0, *words)
