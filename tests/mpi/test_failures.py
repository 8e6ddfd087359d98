"""Nothing hangs: whatever fails on whichever rank, the job ends in seconds, with one message and no process left."""

import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from datasets import make_dataset
from ranks import PATIENCE, Running, full_environment, mpirun, mpirun_path, ssmpi
from runs import Run, train_over_threads

from ssmpi.core.errors import STOPPED
from ssmpi.data.schema import read_manifest, write_manifest, write_shard

LIMIT = 10  # seconds from a fault to the end of the job
STOPPING = 30  # seconds from a request to stop to the end: the model is saved in them
BROKEN = Path(__file__).with_name("broken.py")
SETTINGS = """
data.passes = 100000
data.batch_size = 64
model.bottom = [32, 16]
model.top = [32, 1]
evaluate.split = "none"
evaluate.final = "none"
run.tensorboard = false
run.log_seconds = 0.2
"""
ONE_TRAINER = ("topology.embedding_ps=1", "sync.algorithm=none")
TWO_TRAINERS = ("topology.trainers=2", "topology.threads=2", "sync.algorithm=ma")
ALL_ROLES = ("topology.trainers=2", "topology.sync_ps=1", "sync.algorithm=easgd")
ROLES = ("trainer 0", "trainer 1", "embedding_ps 0", "sync_ps 0")  # of ALL_ROLES, by rank
MOMENT = 3  # seconds between the end of mpirun and that of its last rank


class Job:
    """A training job in a folder of its own. Its processes are known by the run file on their command lines."""

    def __init__(self, folder, start, *overrides, program=("-m", "ssmpi", "train"), environ=None):
        self.run, file = folder / "run", folder / "given.toml"
        file.write_text(SETTINGS)
        places = (file, f"data.folder={folder / 'data'}", f"run.folder={self.run}")
        words = (*start, sys.executable, *program, *places, *overrides)
        self.output = ""
        self._mark, self._broken = str(file).encode(), folder / "broken"
        environ = {"BROKEN_AT": str(self._broken), **(environ or {})}
        self._running = Running([str(word) for word in words], full_environment(environ))

    def until_it_trains(self, more=1):
        """Wait for more lines about training than there are now."""
        before = len(self.told("train"))
        self.until(lambda: len(self.told("train")) >= before + more)
        return self

    def until_it_breaks(self):
        """Wait for what ``broken.py`` does to it: from then on time counts."""
        self.until(self._broken.exists)
        return self

    def told(self, kind):
        """Lines of one kind in the run's metrics so far."""
        with contextlib.suppress(OSError):
            return [line for line in (self.run / "metrics.jsonl").read_text().splitlines() if f'"{kind}"' in line]
        return []

    def until(self, happened):
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert self._running.process.poll() is None, self._running.read_so_far()
            assert time.monotonic() < deadline, self._running.read_so_far()
            time.sleep(0.05)

    def said_so_far(self):
        """Standard error up to now."""
        return self._running.read_so_far()

    def send(self, signum, rank=None):
        """Send a signal to one rank, or to mpirun or whatever was started."""
        pid = self._running.process.pid if rank is None else self.ranks()[rank]
        os.kill(pid, signum)

    def ranks(self):
        """Process ids of the ranks, by rank."""
        found = {}
        for pid in self.living():
            with contextlib.suppress(OSError):
                rank = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())
                found |= {int(rank[1]): pid} if rank else {}
        return found

    def living(self):
        """All processes of this job."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
        return found

    def end(self, within=LIMIT):
        """Exit code and output, once it has ended; no process may be left, a moment later: mpirun waits for none."""
        finished = self._running.wait(within)
        deadline = time.monotonic() + MOMENT
        while self.living() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not self.living(), "processes are left"
        self.output = finished.out + finished.err
        return finished.code, self.output

    def error(self, within=LIMIT):
        """The one message of a job that failed."""
        code, output = self.end(within)
        assert code not in (0, STOPPED), output
        said = re.findall(r"^(?:ssmpi[a-z ]*: )?error: .*", output, re.MULTILINE)
        assert len(said) == 1, output
        return said[0]

    def close(self):
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._running.close()


@pytest.fixture(scope="session")
def good_data(tmp_path_factory):
    """2,000 training rows in two shards, 200 to validate, 200 to test."""
    return make_dataset(tmp_path_factory.mktemp("good"), rows=2_000, shard=1_000, cardinalities=(50,) * 26)


@pytest.fixture
def data(tmp_path, good_data):
    """A copy of the data for this test to spoil."""
    return Path(shutil.copytree(good_data, tmp_path / "data"))


@pytest.fixture
def start(tmp_path, data):
    """Start a job: under mpirun with ``ranks`` ranks, by ``ssmpi launch``, or as one process."""
    jobs = contextlib.ExitStack()

    def begin(*overrides, ranks=0, program=("-m", "ssmpi", "train"), environ=None):
        launcher = (mpirun_path(), "-n", ranks) if ranks else ()
        job = Job(tmp_path, launcher, *overrides, program=program, environ=environ)
        jobs.callback(job.close)
        return job

    with jobs:
        yield begin


def assert_names(text, role, rank, *words):
    assert f"{role} (rank {rank}, host {socket.gethostname()}" in text
    for word in words:
        assert word in text


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


# Wrong folders and data


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
        (lose_shard, ("shard-00001.h5: shard is in the manifest but not on disk", "copy it here")),
        (truncate_shard, ("shard-00001.h5: 5,000 bytes, the manifest says", "prepare again")),
        (swap_shard, ("shard-00000.h5", "not this data set's", "prepare again")),
    ],
)
def test_spoiled_data_is_named(start, data, spoil, words):
    spoil(data)
    assert_names(start(*ONE_TRAINER, ranks=2).error(PATIENCE), "trainer 0", 0, *words)


def put_id_beyond_its_table(data):
    manifest = read_manifest(data)
    first, *others = manifest.splits["train"].shards
    with h5py.File(data / first.file) as shard:
        ids, dense, label = shard["ids"][()], shard["dense"][()], shard["label"][()]
    ids[:, 3] = 50
    size, checksum = write_shard(data / first.file, ids, dense, label, {})
    shards = (replace(first, bytes=size, checksum=checksum), *others)
    write_manifest(data, replace(manifest, splits={"train": replace(manifest.splits["train"], shards=shards)}))


def test_an_id_beyond_its_table_is_named_once_however_many_threads_meet_it(start, data):
    put_id_beyond_its_table(data)
    text = start(*TWO_TRAINERS, ranks=3).error(PATIENCE)
    assert re.search(r"trainer (\d) \(rank \1, host .*, thread worker \d\)", text)
    assert "id 50 of feature C4" in text
    assert "beyond its table of 50 rows" in text
    assert "ssmpi-prepare verify" in text


def test_a_shard_truncated_while_it_is_in_use_is_named_once(start, data):
    job = start(*TWO_TRAINERS, ranks=3).until_it_trains()
    truncate_shard(data)
    text = job.error()
    assert re.search(r"trainer (\d) \(rank \1, host ", text)
    # found by its size, or, cut between that look and the reading, by HDF5
    assert re.search(
        r"shard-00001\.h5: (5,000 bytes, the manifest says|.*damaged HDF5 file|rows .* cannot be read)", text
    )


# Failures in the midst of training


def test_a_loss_that_is_not_finite_ends_the_run(start):
    text = start(*ONE_TRAINER, "dense.rate=1e30", "embedding.rate=1e30", ranks=2).error(PATIENCE)
    assert_names(text, "trainer 0", 0, "thread worker 0", "diverged; lower dense.rate and embedding.rate")


@pytest.mark.parametrize(
    ("what", "rank", "who"),
    [
        ("break_worker", 1, "trainer 1 (rank 1, {host}, thread worker 0)"),
        ("break_shadow", 0, "trainer 0 (rank 0, {host}, thread shadow)"),
        pytest.param("break_embedding_ps", 2, "embedding_ps 0 (rank 2, {host}, thread main)", marks=pytest.mark.soak),
        ("break_sync_ps", 3, "sync_ps 0 (rank 3, {host}, thread main)"),
        ("break_start", 1, "trainer 1 (rank 1, {host}, thread main)"),
        ("break_import", 1, "rank 1 (rank 1, {host}, thread main)"),
        ("break_joining", 1, "rank 1 ({host})"),
    ],
)
def test_an_exception_anywhere_ends_the_job_with_its_traceback(start, what, rank, who):
    by_messages = "embedding.transport=messages"  # else a PS has little to do that could break
    job = start(*ALL_ROLES, by_messages, ranks=4, program=(BROKEN, what, rank, "train"))
    text = job.until_it_breaks().error()
    assert text.startswith(f"error: {who.format(host='host ' + socket.gethostname())}: ")
    assert "on purpose" in text
    assert "Traceback (most recent call last)" in job.output


@pytest.mark.parametrize(
    ("rank", "command"),
    [
        (0, "train"),
        (1, "launch"),
        pytest.param(2, "train", marks=pytest.mark.soak),
        pytest.param(3, "launch", marks=pytest.mark.soak),
    ],
)
def test_a_killed_rank_is_named_once(start, rank, command):
    job = start(*ALL_ROLES, ranks=4 * (command == "train"), program=("-m", "ssmpi", command)).until_it_trains()
    job.send(signal.SIGKILL, rank)
    assert_names(job.error(), ROLES[rank], rank, "was killed or crashed", "Start it again", "more memory")


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_killed_before_it_has_joined_is_named_by_the_launcher(start, rank):
    """Nobody else knows of it yet."""
    job = start(*TWO_TRAINERS, ranks=3)
    job.until(lambda: rank in job.ranks())
    job.send(signal.SIGKILL, rank)
    code, output = job.end()
    assert code not in (0, STOPPED)
    assert re.search(rf"rank {rank}\b.*\n?.*signal 9", output), output
    assert "error:" not in output


def test_a_rank_killed_as_soon_as_it_has_joined_is_named_by_its_role(start):
    job = start(*TWO_TRAINERS, ranks=3)
    job.until(lambda: "3 ranks on 1 host" in job.said_so_far())
    job.send(signal.SIGKILL, 1)
    assert_names(job.error(), "trainer 1", 1, "was killed or crashed")


# Asked to stop


def saved(job):
    """The run, which must say that it was stopped, and hold a whole model."""
    run = Run(job.run)
    assert run.result["status"] == "stopped"
    assert run.result["examples"] > 0
    assert len(run.tables()) == 26
    assert all(np.isfinite(weights).all() for weights in run.dense().values())
    return run


@pytest.mark.parametrize(("signum", "topology"), [(signal.SIGINT, ALL_ROLES), (signal.SIGTERM, ONE_TRAINER)])
def test_launch_turns_an_interrupt_into_a_stop_that_saves(start, signum, topology):
    job = start(*topology, program=("-m", "ssmpi", "launch")).until_it_trains()
    job.send(signum)
    code, output = job.end(STOPPING)
    assert code == STOPPED, output
    assert "error:" not in output
    saved(job)


def test_one_trainer_asked_to_stop_takes_all_along(start):
    job = start(*TWO_TRAINERS, ranks=3).until_it_trains()
    job.send(signal.SIGTERM, rank=1)
    code, output = job.end(STOPPING)
    assert code == STOPPED, output
    saved(job)


def test_a_server_asked_to_stop_serves_on(start):
    job = start(*ONE_TRAINER, ranks=2).until_it_trains()
    job.send(signal.SIGTERM, 1)
    job.until_it_trains(more=3)
    job.send(signal.SIGTERM, 0)
    code, output = job.end(STOPPING)
    assert code == STOPPED, output
    saved(job)


def test_a_stop_before_training_saves_and_leaves(start):
    job = start(*TWO_TRAINERS, ranks=3, program=(BROKEN, "stop_before_training", 1, "train"))
    code, output = job.end(PATIENCE)
    assert code == STOPPED, output
    assert Run(job.run).result["status"] == "stopped"


def test_a_stop_in_the_last_evaluation_leaves_the_model_of_all_rows(start):
    program = (BROKEN, "stop_in_evaluation", 0, "train")
    job = start(*ONE_TRAINER, "data.passes=1", "evaluate.final=test", "evaluate.batch_size=1", ranks=2, program=program)
    code, output = job.end(PATIENCE)
    assert code == STOPPED, output
    assert not job.told("evaluation")
    assert saved(job).result["examples"] == 2_000


def test_plain_mpirun_interrupted_says_nothing_wrong_and_leaves_nothing_half(start):
    job = start(*ONE_TRAINER, ranks=2).until_it_trains()
    job.send(signal.SIGINT)
    code, output = job.end(STOPPING)
    assert code != 0
    assert "error:" not in output
    if (job.run / "result.json").exists():  # a small model can be saved in the quarter of a second that mpirun gives
        saved(job)


# Frozen


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_a_frozen_rank_is_named_and_the_job_ends(start, rank):
    job = start(*ALL_ROLES, "waiting.frozen_seconds=4", ranks=4).until_it_trains()
    job.send(signal.SIGSTOP, rank)
    assert_names(job.error(), ROLES[rank], rank, "has given no sign of life for 4 s", "frozen")


ENDING = """
import os, signal
from ssmpi.comm import world
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


@pytest.mark.soak
def test_a_job_that_is_suspended_as_a_whole_goes_on(start):
    job = start(*TWO_TRAINERS, "waiting.frozen_seconds=4", ranks=3).until_it_trains()
    pids = job.ranks().values()
    for signum in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, signum)
        time.sleep(6 if signum == signal.SIGSTOP else 0)
    job.until_it_trains(more=2)
    job.send(signal.SIGUSR1)
    code, output = job.end(STOPPING)
    assert code == STOPPED, output


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
