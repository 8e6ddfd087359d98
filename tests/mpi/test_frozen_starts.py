"""A rank that is frozen while the job starts is named, and the job ends, or starts again: nobody waits for ever."""

import re
import signal
from pathlib import Path

import pytest
from ranks import PATIENCE, full_environment, mpirun, python_path
from training_job import STOPPING, TWO_TRAINERS

from ssmpi.runtime.errors import STOPPED
from ssmpi.runtime.mpi.starting import STOP_SECONDS

SECONDS = 15  # thirty times what a start takes on an idle machine until its heartbeats begin
PHASES = {
    "ssmpi": "before it imports anything of ssmpi",
    "mpi4py.MPI": "while the others are in MPI_Init",
    "ssmpi.runtime.mpi.messages": "after MPI_Init, before its first heartbeat",
    "ssmpi.train": "before the ranks agree on the run file",
    "ssmpi.trainer.trainer": "when every rank knows its role",
}
soak = pytest.mark.soak


def freezing(rank, start, module, seconds=SECONDS):
    """The environment in which a rank freezes in a start."""
    path = python_path(Path(__file__).parent / "freezing", full_environment()["PYTHONPATH"])
    return {"FREEZE": f"{rank} {start} {module}", "SSMPI_START_SECONDS": str(seconds), "PYTHONPATH": path}


def assert_named(output, rank):
    """Named by the ranks of its host before there are messages, from then on by the next rank."""
    before = rf"error: host .*: not all ranks have started within .* s: rank {rank} \(process \d+\) is stopped"
    after = rf"error: (rank|trainer|embedding_ps) \d \(rank {rank}, host .*\) has given no sign of life for {SECONDS} s"
    assert re.search(f"{before}|{after}", output), output


@pytest.mark.parametrize(
    ("rank", "module"),
    [
        pytest.param(2, "ssmpi", marks=soak),
        (1, "mpi4py.MPI"),
        pytest.param(2, "ssmpi.runtime.mpi.messages", marks=soak),
        pytest.param(0, "ssmpi.train", marks=soak),
        pytest.param(1, "ssmpi.trainer.trainer", marks=soak),
    ],
    ids=lambda value: PHASES.get(value, value),
)
def test_a_rank_frozen_in_a_first_start_is_named(start, rank, module):
    job = start(*TWO_TRAINERS, ranks=3, environ=freezing(rank, 1, module)).until_it_breaks()
    code, output = job.end(PATIENCE)
    assert code not in (0, 2, STOPPED), output
    assert_named(output, rank)
    assert output.count("error: ") == 1, output


@pytest.mark.parametrize(
    ("rank", "module"),
    [
        pytest.param(1, "ssmpi", marks=soak),
        pytest.param(0, "mpi4py.MPI", marks=soak),
        pytest.param(1, "ssmpi.runtime.mpi.messages", marks=soak),
        (2, "ssmpi.train"),
        pytest.param(0, "ssmpi.trainer.trainer", marks=soak),
    ],
    ids=lambda value: PHASES.get(value, value),
)
def test_after_a_rank_froze_in_a_restart_the_job_starts_again_from_memory(start, rank, module):
    environ = freezing(rank, 2, module)
    job = start(*TWO_TRAINERS, program=("-m", "ssmpi", "launch"), environ=environ).until_it_trains()
    job.send(signal.SIGKILL, 2)
    job.until_it_breaks()
    job.until(lambda: "start 3 of this job: every rank resumes from its memory" in job.said_so_far())
    job.until_it_trains()
    job.send(signal.SIGTERM)
    code, output = job.end(STOPPING)
    assert code == STOPPED, output
    assert_named(output, rank)


@pytest.mark.parametrize(
    ("signum", "module", "stopped"),
    [
        pytest.param(signal.SIGTERM, "mpi4py.MPI", False, marks=soak),
        pytest.param(signal.SIGTERM, "ssmpi.train", False, marks=soak),
        pytest.param(signal.SIGINT, "mpi4py.MPI slow", True, marks=soak),
        pytest.param(signal.SIGTERM, "mpi4py.MPI slow", True, marks=soak),
    ],
)
def test_a_start_that_is_asked_to_stop_ends_soon(start, signum, module, stopped):
    """The limit is 1,000 s; nothing is to be saved yet. A frozen rank is lost; where one is slow it is a stop."""
    job = start(*TWO_TRAINERS, program=("-m", "ssmpi", "launch"), environ=freezing(1, 1, module, 1000))
    job.until_it_breaks().until_it_listens()
    job.send(signum)
    code, output = job.end(STOP_SECONDS + PATIENCE)
    assert (code == STOPPED) == stopped, output
    assert code
    frozen = re.search(r"rank 1\b.* (is stopped|has given no sign of life for 20 s)", output)
    assert "stopped before all ranks had started" in output if stopped else frozen, output
    assert ("error: " in output) == (not stopped), output


LATE = """
import time
from ssmpi.runtime.mpi import world
from ssmpi.runtime.mpi.starting import StartWatch
world.MEETING_SECONDS = 2
with world.joined(StartWatch()) as job:
    if job.rank == 1:
        time.sleep(1000)
    job.gather(job.rank)
"""


def test_a_rank_that_lives_but_never_comes_is_named(tmp_path):
    """Its heartbeats go on."""
    (tmp_path / "late.py").write_text(LATE)
    ended = mpirun(3, tmp_path / "late.py")
    assert ended.code not in (0, 2, STOPPED)
    assert "the job does not start: no answer from rank 1 within 2 s" in ended.err, ended.err
