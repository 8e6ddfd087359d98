"""``ssmpi launch`` starts a job again whose ranks were killed, and training goes on with what their memory has kept."""

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from runs import Run
from training_job import STOPPING, TWO_TRAINERS

from ssmpi.core.errors import STOPPED


@pytest.fixture
def memory():
    """A folder for what ranks keep, in which nothing may be left."""
    folder = Path(tempfile.mkdtemp(prefix="ssmpi-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def test_launch_goes_on_at_once_whoever_is_killed(start, memory):
    """An embedding PS, a trainer, then all ranks; in the end the job stops as it is told to."""
    job = start(*TWO_TRAINERS, f"recovery.memory_folder={memory}", program=("-m", "ssmpi", "launch")).until_it_trains()
    for victims in ((2,), (1,), (0, 1, 2)):
        killed = job.ranks()
        for rank in victims:
            os.kill(killed[rank], signal.SIGKILL)
        job.until(lambda: not set(killed.values()) & set(job.living()))  # noqa: B023 - called in this turn only
        job.until_it_trains()
    job.send(signal.SIGTERM)
    code, output = job.end(STOPPING)
    assert code == STOPPED, output
    result = Run(job.run).result
    assert (result["status"], result["restarts"]) == ("stopped", 3)
    assert [each["how"] for each in result["recoveries"]] == ["memory"] * 3
    assert all(each["batches_repeated"] <= 4 for each in result["recoveries"])
    places = [json.loads(line)["examples"] for line in job.told("train")]
    assert places == sorted(places)
    assert all(0 < each["examples"] <= result["examples"] for each in result["recoveries"])
    assert list(memory.iterdir()) == []
