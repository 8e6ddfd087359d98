"""Embedding PSs that save rows all the time are killed at random moments, with and without their memory: what they have
saved can always be read, and the run goes on with it.
"""

import os
import random
import signal
import time

import pytest
from test_killed_ranks import memory  # noqa: F401 - a fixture
from training_job import STOPPING, TWO_TRAINERS

from ssmpi.runtime.errors import STOPPED
from ssmpi.runtime.mpi.rank_memory import remove
from ssmpi.state.checkpoint.rows.records import read_rows
from ssmpi.state.checkpoint.rows.row_store import path_of
from ssmpi.state.recovery import run_record

KILLS = int(os.environ.get("KILLS", "100")) // 5
SAVING = ("checkpoint.priority=mfu", "checkpoint.priority_fraction=0.9", "recovery.mtbf_hours=1e-9")
SETTINGS = (*TWO_TRAINERS, *SAVING, "checkpoint.every_minutes=0", "recovery.mode=partial", "recovery.max_restarts=1000")


@pytest.mark.soak
def test_rows_that_are_saved_all_the_time_outlive_any_kill(start, memory):  # noqa: F811
    seed = random.randrange(2**32)
    chance, sources = random.Random(seed), []
    print(f"seed {seed}")
    settings = (*SETTINGS, f"recovery.memory_folder={memory}", "recovery.max_lost_fraction=1")
    job = start(*settings, program=("-m", "ssmpi", "launch")).until_it_trains()
    path = path_of(job.run, 0)
    job.until(path.exists)
    for _ in range(KILLS):
        time.sleep(chance.uniform(0, 1.5))
        killed, lost = job.ranks(), chance.random() < 0.5
        for file in memory.glob("*/embedding_ps-0") if lost else ():
            remove(file)
        os.kill(killed[2], signal.SIGKILL)
        job.until(lambda: not set(killed.values()) & set(job.living()))  # noqa: B023 - called in this turn only
        saved, _ = read_rows(path)  # DataError if its base is not whole
        job.until_it_trains()
        last = run_record.RunRecord.read(job.run).recoveries[-1]
        assert last["how"] == ("partial" if lost else "memory")
        if lost:
            assert saved.newest.samples <= last["examples"]
            sources += last["sources"].values()
            assert 0 <= last["updates_lost"] <= 26 * last["examples"]
    job.send(signal.SIGTERM)
    code, output = job.end(STOPPING)
    print(f"{KILLS} kills, {len(sources)} of them with the rows")
    assert code == STOPPED, output
    assert set(sources) <= {path.name}
    assert list(memory.iterdir()) == []
    assert not path.exists()  # there is a checkpoint now
