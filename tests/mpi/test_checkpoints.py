"""A run killed, stopped, damaged and gone on with under mpirun, with other numbers of ranks each time, to its exact
end.
"""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
from datasets import make_dataset
from ranks import PATIENCE, running, ssmpi
from runs import Run, write_run_file

from ssmpi import cli
from ssmpi.runtime.errors import STOPPED, SettingsError
from ssmpi.runtime.settings import dump
from ssmpi.state import resume, run_lock
from ssmpi.state.checkpoint.store import Store
from ssmpi.state.request import RunRequest

BROKEN = Path(__file__).with_name("broken.py")
SETTINGS = (
    "data.batch_size=64", "data.passes=100_000", "evaluate.split=none", "evaluate.final=test",
    "run.record_losses=false",
    "checkpoint.every_examples=2000", "run.log_seconds=0.2",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("data"), rows=4_000, shard=1_500, cardinalities=(60,) * 26)


def rank_of(pid):
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(w.split(b"=")[1]) for w in words if w.startswith(b"OMPI_COMM_WORLD_RANK=")), None)


def examples_of(checkpoint):
    return json.loads((checkpoint / "manifest.json").read_text())["state"]["examples"]


def interfere(job, run, signum, rank, checkpoints):
    """Send a signal to one rank once there are so many checkpoints, whatever is being done then; how the job ended."""
    deadline = time.monotonic() + PATIENCE
    while not any(int(path.name[-6:]) >= checkpoints for path in Store(run).committed()):
        assert job.process.poll() is None, job.read_so_far()
        assert time.monotonic() < deadline, job.read_so_far()
        time.sleep(0.02)
    os.kill(next(pid for pid in job.pids() if rank_of(pid) == rank), signum)
    return job.wait(PATIENCE)


def test_killed_stopped_damaged_and_resharded_it_ends_with_every_row(tmp_path, data):
    first = ("topology.trainers=2", "topology.embedding_ps=1", "sync.algorithm=ma")
    config = write_run_file(tmp_path, data, *SETTINGS, *first)
    given, run = tmp_path / "given.toml", Path(config.run.folder)
    given.write_text(dump(config))

    with running(3, "-m", "ssmpi", "train", given, "--resume", run) as job:
        killed = interfere(job, run, signal.SIGKILL, rank=2, checkpoints=2)
    assert killed.code not in (0, STOPPED)
    assert "embedding_ps 0 (rank 2" in killed.err

    second = ("topology.trainers=1", "topology.threads=2", "topology.embedding_ps=2", "sync.algorithm=none")
    before = int(Store(run).committed()[-1].name[-6:])
    with running(3, "-m", "ssmpi", "train", "--resume", run, *second) as job:
        stopped = interfere(job, run, signal.SIGUSR2, rank=0, checkpoints=before + 1)
    assert stopped.code == STOPPED, stopped.err
    assert Run(run).result["status"] == "stopped"
    at = examples_of(Store(run).committed()[-1])
    assert at == Run(run).result["examples"]

    newest = Store(run).committed()[-1]
    content = bytearray((newest / "embedding-0001.h5").read_bytes())
    content[len(content) // 2] ^= 4
    (newest / "embedding-0001.h5").write_bytes(content)
    with pytest.raises(SystemExit) as inspected:
        cli.main(["inspect", str(run)])
    assert inspected.value.code == 2
    refused = ssmpi("train", "--resume", run, "topology.trainers=1", "topology.embedding_ps=0")
    assert refused.code == 2
    assert "embedding-0001.h5: damaged" in refused.err
    assert f"--checkpoint {Store(run).committed()[-2].name}" in refused.err
    third = ("topology.trainers=2", "topology.threads=1", "topology.embedding_ps=1", "topology.sync_ps=1")
    passes = at // 4_000 + 2
    whole = ("--resume", run, "--checkpoint", "whole", *third, "sync.algorithm=easgd", f"data.passes={passes}")
    ssmpi("train", *whole, ranks=4).check()
    assert Run(run).result["status"] == "complete"
    assert Run(run).result["examples"] == passes * 4_000
    assert "this run is finished" in ssmpi("train", "--resume", run).check().out


def test_a_stop_that_cannot_be_saved_in_its_budget_ends_the_job(tmp_path, data):
    config = write_run_file(
        tmp_path, data, *SETTINGS, "checkpoint.every_examples=0", "checkpoint.stop_budget_seconds=0.5"
    )
    (tmp_path / "given.toml").write_text(dump(config))
    with running(2, BROKEN, "stop_where_the_disk_hangs", 0, "train", tmp_path / "given.toml") as job:
        ended = job.wait(PATIENCE)
    assert ended.code == STOPPED, ended.err
    assert "no checkpoint within checkpoint.stop_budget_seconds = 0.5" in ended.err


def test_two_jobs_do_not_write_one_run(tmp_path, data, monkeypatch):
    """Neither a new one nor one that goes on may begin while the first lives; once that is killed the next one starts
    at once.
    """
    monkeypatch.setattr(run_lock, "ENDING_SECONDS", 0.0)
    config = write_run_file(tmp_path, data, *SETTINGS, "data.passes=100000")
    (tmp_path / "given.toml").write_text(dump(config))
    run = Path(config.run.folder)
    with running(2, "-m", "ssmpi", "train", tmp_path / "given.toml") as job:
        deadline = time.monotonic() + PATIENCE
        while not Store(run).committed():
            assert job.process.poll() is None, job.read_so_far()
            assert time.monotonic() < deadline, job.read_so_far()
            time.sleep(0.05)
        holder = next(pid for pid in job.pids() if rank_of(pid) == 0)
        for other in (RunRequest(tmp_path / "given.toml", (), overwrite=True), RunRequest(None, (), run=run)):
            with contextlib.ExitStack() as held, pytest.raises(SettingsError) as refused:
                resume.prepare(other, 2, held)
            assert f"{run}: another job is using this run (process {holder} on host " in str(refused.value)
            assert f"end it ('kill {holder}')" in str(refused.value)
        assert job.process.poll() is None, job.read_so_far()
        interfere(job, run, signal.SIGKILL, rank=0, checkpoints=1)
    passes = examples_of(Store(run).committed()[-1]) // 4_000 + 2
    ssmpi("train", "--resume", run, f"data.passes={passes}", ranks=2).check()
    assert Run(run).result["examples"] == passes * 4_000
