"""Where a launch ends before the run is saved, memory stays, and the run's next launch resumes from it."""

import json
import os
import signal

import pytest
from runs import Run
from test_killed_ranks import memory  # noqa: F401 - a fixture
from training_job import STOPPING, TWO_TRAINERS

from ssmpi.runtime.errors import LOST, STOPPED
from ssmpi.runtime.host.memory_folder import runs_of

LAUNCH = ("-m", "ssmpi", "launch")
STAYS = "the memory of the ranks stays in"


def settings(memory, *more):  # noqa: F811
    return (*TWO_TRAINERS, f"recovery.memory_folder={memory}", *more)


def killed(job, *victims):
    """SIGKILL to some ranks, or to all; returns when nobody of them is left."""
    there = job.ranks()
    for rank in victims or there:
        os.kill(there[rank], signal.SIGKILL)
    return lambda: not set(there.values()) & set(job.living())


def examples(job):
    return json.loads(job.told("train")[-1])["examples"]


def resume_and_stop(start, job, memory, *overrides):  # noqa: F811
    """The next launch resumes from memory, trains, and saves when it is stopped. Returns the run's recoveries."""
    before = examples(job)
    again = start(*settings(memory, *overrides), program=LAUNCH, resume=True).until_it_trains()
    again.send(signal.SIGTERM)
    code, output = again.end(STOPPING)
    assert code == STOPPED, output
    result = Run(job.run).result
    assert result["status"] == "stopped"
    last = result["recoveries"][-1]
    assert last["how"] == "memory", output
    assert before <= last["examples"] <= result["examples"]
    assert list(memory.iterdir()) == []
    return result["recoveries"]


def test_the_next_launch_resumes_from_memory_after_the_last_restart(start, memory):  # noqa: F811
    """Not with other settings, and not without ``ssmpi launch``, unless that is asked for."""
    once = settings(memory, "recovery.max_restarts=0")
    job = start(*once, program=LAUNCH).until_it_trains()
    job.until(killed(job, 2))
    code, output = job.end(STOPPING)
    assert code == LOST, output
    assert output.count("the memory of the ranks stays in") == 1
    assert runs_of(next(memory.glob("*/trainer-0")).parent) == {job.run.resolve()}
    assert not list(memory.glob("*/sm_segment.*"))
    refused = start(*once, "dense.rate=0.5", program=LAUNCH, resume=True)
    assert "add '--checkpoint whole'" in refused.error(STOPPING)
    by_train = start(*once, "run.log_seconds=0.2", ranks=3, resume=True)
    assert "add '--checkpoint whole'" in by_train.error(STOPPING)
    assert len(resume_and_stop(start, job, memory)) == 1


def test_a_rank_that_is_killed_while_the_job_stops_takes_nothing_along(start, memory):  # noqa: F811
    job = start(*settings(memory), program=LAUNCH).until_it_trains()
    job.send(signal.SIGSTOP, 2)  # without it nothing can be saved
    job.send(signal.SIGTERM)
    job.until(lambda: "stopping (SIGTERM)" in job.said_so_far())
    job.send(signal.SIGKILL, 2)
    code, output = job.end(STOPPING)
    assert code == LOST, output
    resume_and_stop(start, job, memory)


@pytest.mark.soak
def test_a_stop_while_a_job_restarts_takes_nothing_along(start, memory):  # noqa: F811
    """Either its ranks save, or their memory stays."""
    job = start(*settings(memory), program=LAUNCH).until_it_trains()
    killed(job)
    job.until(lambda: "restarting the job at once" in job.said_so_far())
    job.send(signal.SIGTERM)
    code, output = job.end(STOPPING)
    assert code == STOPPED, output
    if list(memory.iterdir()):
        resume_and_stop(start, job, memory)
    assert Run(job.run).result["examples"] >= examples(job)
