"""Nothing hangs: whatever fails on whichever rank, the job ends in seconds, with one message and no process left. CI
meets each detector once; soak, every rank and thread.
"""

import os
import re
import signal
import socket
from dataclasses import replace

import h5py
import pytest
from ranks import PATIENCE, mpirun, ssmpi
from runs import train_over_threads
from training_job import ALL_ROLES, BROKEN, LIMIT, ROLES, TWO_TRAINERS, assert_names

from ssmpi.data.schema import read_manifest, write_manifest, write_shard
from ssmpi.data.shard_columns import Columns
from ssmpi.runtime.errors import STOPPED, TrainingError

soak = pytest.mark.soak

# Bad data that only training meets


def put_id_beyond_its_table(data):
    manifest = read_manifest(data)
    first, *others = manifest.splits["train"].shards
    with h5py.File(data / first.file) as shard:
        ids, dense, label = shard["ids"][()], shard["dense"][()], shard["label"][()]
    ids[:, 3] = 50
    size, checksum = write_shard(data / first.file, Columns(ids, dense, label), {})
    shards = (replace(first, bytes=size, checksum=checksum), *others)
    write_manifest(data, replace(manifest, splits={"train": replace(manifest.splits["train"], shards=shards)}))


@soak  # its messages are in unit/data and unit/embedding
def test_an_id_beyond_its_table_is_named_once_however_many_threads_meet_it(start, data):
    put_id_beyond_its_table(data)
    text = start(*TWO_TRAINERS, ranks=3).error(PATIENCE)
    # by the check of the shard, or by a worker that has got rows before it
    assert re.search(r"trainer (\d) \(rank \1, host .*, thread (check|worker \d)\)", text)
    assert re.search(r"id 50 of C4 is outside \[0, 50\)|id 50 of feature C4 .*beyond its table of 50 rows", text)
    assert re.search("prepare the data again|ssmpi-prepare verify", text)


@soak  # its messages are in unit/data/test_data.py
def test_a_shard_truncated_while_it_is_in_use_is_named_once(start, data):
    job = start(*TWO_TRAINERS, ranks=3).until_it_trains()
    os.truncate(data / "train" / "shard-00001.h5", 5_000)
    text = job.error()
    assert re.search(r"trainer (\d) \(rank \1, host ", text)
    # found by its size, or, cut between that look and the reading, by HDF5: opening it, its columns, its rows
    found = "5,000 bytes, the manifest says|not a readable HDF5 file|damaged HDF5 file|rows .* cannot be read"
    assert re.search(rf"shard-00001\.h5: ({found})", text)


# Failures in the midst of training


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loss_that_is_not_finite_ends_the_run(tmp_path, good_data):
    with pytest.raises(TrainingError, match=r"diverged; lower dense\.rate and embedding\.rate"):
        train_over_threads(tmp_path, good_data, "dense.rate=1e30", "embedding.rate=1e30")


@pytest.mark.parametrize(
    ("what", "rank", "who"),
    [
        pytest.param("break_worker", 1, "trainer 1 (rank 1, {host}, thread worker 0)", marks=soak),
        ("break_shadow", 0, "trainer 0 (rank 0, {host}, thread shadow)"),
        ("break_embedding_ps", 2, "embedding_ps 0 (rank 2, {host}, thread main)"),
        pytest.param("break_sync_ps", 3, "sync_ps 0 (rank 3, {host}, thread main)", marks=soak),
        pytest.param("break_start", 1, "trainer 1 (rank 1, {host}, thread main)", marks=soak),
        pytest.param("break_import", 1, "rank 1 (rank 1, {host}, thread main)", marks=soak),
        pytest.param("break_joining", 1, "rank 1 ({host})", marks=soak),
    ],
)
def test_an_exception_anywhere_ends_the_job_with_its_traceback(start, what, rank, who):
    by_messages = ("run.shared_memory=false",)  # else a PS has little to do
    job = start(*ALL_ROLES, *by_messages, ranks=4, program=(BROKEN, what, rank, "train"))
    text = job.until_it_breaks().error()
    assert text.startswith(f"error: {who.format(host='host ' + socket.gethostname())}: ")
    assert "on purpose" in text
    assert "Traceback (most recent call last)" in job.output


@pytest.mark.parametrize(
    ("rank", "command"),
    [
        (0, "train"),
        pytest.param(1, "launch", marks=soak),
        pytest.param(2, "train", marks=soak),
        pytest.param(3, "launch", marks=soak),
    ],
)
def test_a_killed_rank_is_named_once(start, rank, command):
    topology = (*ALL_ROLES, "recovery.mode=off")
    job = start(*topology, ranks=4 * (command == "train"), program=("-m", "ssmpi", command)).until_it_trains()
    job.send(signal.SIGKILL, rank)
    assert_names(job.error(), ROLES[rank], rank, "was killed or crashed", "start the job again", "more memory")


@pytest.mark.parametrize("rank", [2, pytest.param(0, marks=soak)])
def test_a_rank_killed_before_it_has_joined_is_named_by_the_launcher(start, rank):
    """Nobody else knows of it yet."""
    job = start(*TWO_TRAINERS, ranks=3)
    job.until(lambda: rank in job.ranks())
    job.send(signal.SIGKILL, rank)
    code, output = job.end()
    assert code not in (0, STOPPED)
    assert re.search(rf"rank {rank}\b.*\n?.*signal 9", output), output
    assert "error:" not in output


@soak
def test_a_rank_killed_as_soon_as_it_has_joined_is_named_by_its_role(start):
    """Or by the launcher alone, where that ends the others while they are still busy with their imports."""
    job = start(*TWO_TRAINERS, ranks=3)
    job.until(lambda: "3 ranks on 1 host" in job.said_so_far())
    job.send(signal.SIGKILL, 1)
    code, output = job.end()
    assert code not in (0, STOPPED)
    said = re.findall("^error: .*", output, re.MULTILINE)
    if said:
        assert_names(*said, "trainer 1", 1, "was killed or crashed")
    else:
        assert re.search(r"rank 1\b.*\n?.*signal 9", output), output


# Frozen


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=soak)])
def test_a_frozen_rank_is_named_and_the_job_ends(start, rank):
    """After 12 s: a busy machine once kept a rank from giving a sign for 4 s while kernels were loaded."""
    job = start(*ALL_ROLES, "waiting.frozen_seconds=12", ranks=4).until_it_trains()
    job.send(signal.SIGSTOP, rank)
    assert_names(job.error(12 + LIMIT), ROLES[rank], rank, "has given no sign of life for 12 s", "frozen")


ENDING = """
import os, signal
from ssmpi.runtime.mpi import world
world.ENDING_SECONDS = 2
job = world.join()
job.leave()
if job.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_rank_frozen_when_all_have_left_keeps_nobody_alive(tmp_path):
    """The others wait for it in MPI_Finalize, where no thread of theirs runs."""
    (tmp_path / "ending.py").write_text(ENDING)
    assert mpirun(2, tmp_path / "ending.py").code != 0


def test_a_damaged_model_ends_every_rank_that_would_score_it(tmp_path, good_data):
    run = train_over_threads(tmp_path, good_data, "topology.embedding_ps=1").folder
    path = run / "model/embedding-0000.h5"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    ended = ssmpi("evaluate", run, ranks=2, timeout=PATIENCE / 2)
    assert ended.code == 2, ended.err
    assert ended.err.count("error: ") == 1
    assert f"{path}: damaged: its SHA-256 is not the one that was written" in ended.err
    assert "NE" not in ended.out
