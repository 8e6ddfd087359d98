"""``ssmpi launch`` restarts a job whose ranks were killed, and training resumes from their memory."""

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from datasets import write_counts
from runs import Run
from training_job import STOPPING, TWO_TRAINERS

from ssmpi.data.schema import read_manifest
from ssmpi.runtime.errors import STOPPED
from ssmpi.runtime.mpi.rank_memory import remove


@pytest.fixture
def memory():
    """A folder for what ranks keep, in which nothing may be left."""
    folder = Path(tempfile.mkdtemp(prefix="ssmpi-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def test_launch_goes_on_at_once_whoever_is_killed(start, memory):
    """An embedding PS, a trainer, then all ranks; and an embedding PS and a trainer with their memory. In the end the
    job stops as it is told to.
    """
    settings = (f"recovery.memory_folder={memory}", "recovery.max_lost_fraction=1", "recovery.target_pls=1")
    job = start(*TWO_TRAINERS, *settings, program=("-m", "ssmpi", "launch")).until_it_trains()
    for victims, lost in (((2,), ""), ((1,), ""), ((0, 1, 2), ""), ((2,), "embedding_ps-0"), ((1,), "trainer-1")):
        killed = job.ranks()
        for path in memory.glob(f"*/{lost}") if lost else ():
            remove(path)  # those who map it keep it, until they are killed
        for rank in victims:
            os.kill(killed[rank], signal.SIGKILL)
        job.until(lambda: not set(killed.values()) & set(job.living()))  # noqa: B023 - called in this turn only
        job.until_it_trains()
    job.send(signal.SIGTERM)
    code, output = job.end(STOPPING)
    assert code == STOPPED, output
    result = Run(job.run).result
    assert (result["status"], result["restarts"]) == ("stopped", 5)
    assert [each["how"] for each in result["recoveries"]] == ["memory"] * 3 + ["partial"] * 2
    of_server, of_trainer = result["recoveries"][3:]
    assert of_server["sources"] == {"embedding_ps 0": "the initial rows"}  # nothing was saved
    assert (of_server["rows_reloaded"], of_server["samples_lost"]) == (26 * 50, of_server["examples"])
    assert result["pls"] == of_server["pls"] == of_trainer["pls"] == of_server["examples"] / result["expected_examples"]
    assert (of_trainer["rows_reloaded"], of_trainer["samples_lost"]) == (0, 0)
    assert "embedding_ps 0 is lost" in output
    assert "PLS is" in output
    assert all(each["batches_repeated"] <= 4 for each in result["recoveries"])
    places = [json.loads(line)["examples"] for line in job.told("train")]
    assert places == sorted(places)
    assert all(0 < each["examples"] <= result["examples"] for each in result["recoveries"])
    assert list(memory.iterdir()) == []


def test_rows_on_disk_survive_their_ps_and_are_lost_with_their_file(start, memory, disk, data):
    """Hot ones in memory, others on disk."""
    write_counts(data, read_manifest(data).cardinalities)
    lossy = ("recovery.max_lost_fraction=1", "recovery.target_pls=1")
    settings = (f"recovery.memory_folder={memory}", f"embedding.storage={disk}", *lossy)
    job = start(*TWO_TRAINERS, *settings, program=("-m", "ssmpi", "launch")).until_it_trains()
    for lost in ("", "embedding_ps-0"):
        killed = job.ranks()
        for path in disk.glob(f"*/{lost}") if lost else ():
            remove(path)
        os.kill(killed[2], signal.SIGKILL)
        job.until(lambda: not set(killed.values()) & set(job.living()))  # noqa: B023 - called in this turn only
        job.until_it_trains()
    job.send(signal.SIGTERM)
    code, output = job.end(STOPPING)
    assert code == STOPPED, output
    assert [each["how"] for each in Run(job.run).result["recoveries"]] == ["memory", "partial"]
    assert "embedding_ps 0 is lost" in output
    assert list(memory.iterdir()) == list(disk.iterdir()) == []
