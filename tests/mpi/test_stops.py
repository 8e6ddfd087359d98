"""A job that is asked to stop ends in time and saves what it has learned, whoever is asked and whenever."""

import os
import signal
import time

import numpy as np
import pytest
from ranks import PATIENCE
from runs import Run
from training_job import ALL_ROLES, BROKEN, ONE_TRAINER, STOPPING, TWO_TRAINERS

from ssmpi.runtime.errors import STOPPED


def saved(job):
    """The run, which must say that it was stopped, and hold a whole model."""
    run = Run(job.run)
    assert run.result["status"] == "stopped"
    assert run.result["examples"] > 0
    assert len(run.tables()) == 26
    assert all(np.isfinite(weights).all() for weights in run.dense().values())
    return run


@pytest.mark.parametrize(
    ("signum", "topology"),  # SIGTERM ends the jobs of other tests, too
    [(signal.SIGINT, ALL_ROLES), pytest.param(signal.SIGTERM, ONE_TRAINER, marks=pytest.mark.soak)],
)
def test_launch_turns_an_interrupt_into_a_stop_that_saves(start, signum, topology):
    job = start(*topology, program=("-m", "ssmpi", "launch")).until_it_trains()
    job.send(signum)
    code, output = job.end(STOPPING)
    assert code == STOPPED, output
    assert "error:" not in output
    saved(job)


def test_a_server_ignores_a_stop_and_one_trainer_stops_all(start):
    job = start(*TWO_TRAINERS, ranks=3).until_it_trains()
    job.send(signal.SIGTERM, rank=2)
    job.until_it_trains(more=3)
    job.send(signal.SIGTERM, rank=1)
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


@pytest.mark.soak
def test_an_interrupted_mpirun_leaves_nothing_half(start):
    job = start(*ONE_TRAINER, ranks=2).until_it_trains()
    job.send(signal.SIGINT)
    code, output = job.end(STOPPING)
    assert code != 0
    assert "error:" not in output
    if (job.run / "result.json").exists():  # a small model can be saved in the quarter of a second that mpirun gives
        saved(job)


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
