"""Whatever is killed whenever, ``ssmpi launch`` goes on: a hundred random moments, those of saves, evaluations and
restarts among them.
"""

import json
import os
import random
import signal
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
from test_killed_ranks import memory  # noqa: F401 - a fixture
from training_job import ALL_ROLES, STOPPING, TWO_TRAINERS

from ssmpi.data.position import Position
from ssmpi.runtime.errors import STOPPED
from ssmpi.runtime.quality import SUMS
from ssmpi.state.checkpoint.store import Store
from ssmpi.state.checkpoint.trainer_state import Checkpoint

KILLS = int(os.environ.get("KILLS", "100"))
ROWS, BATCH, CALM = 2_000, 64, 1.5
OFTEN = (
    "evaluate.split=validation", "checkpoint.every_examples=20000", "recovery.max_restarts=100000",
    "run.record_losses=false",
)  # fmt: skip
RUNS = {
    "in place": TWO_TRAINERS,
    "in groups": (*TWO_TRAINERS, "topology.trainers=4", "topology.group=2", "hierarchy.plan=stages"),
    "by messages": (*ALL_ROLES, "run.shared_memory=false", "topology.embedding_ps=2"),
    "by codecs": (
        *ALL_ROLES[:2], "sync.algorithm=async_ps", "sync.codec=threshold:0.99",
    ),
}  # fmt: skip


def launcher(job):
    """The process of mpirun under ``ssmpi launch``."""
    ranks = set(job.ranks().values())
    return [pid for pid in job.living() if pid not in ranks and b"mpirun" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def strike(job, chance):
    """SIGKILL one rank, some, all, or what has started them; returns the ranks of the job that ends, none if there was
    nobody.
    """
    ranks = list(job.ranks().values())
    kind = chance.random()
    some = chance.sample(ranks, min(len(ranks), 1 if kind < 0.5 else chance.randint(1, 3)))
    victims = launcher(job) if kind > 0.9 else ranks if kind > 0.7 else some
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            victims = [other for other in victims if other != pid]
    return set(ranks) if victims else set()


@pytest.mark.soak
@pytest.mark.parametrize("how", RUNS)
def test_random_kills(start, memory, how):  # noqa: F811
    seed, seconds, struck = random.randrange(2**32), [], 0
    chance = random.Random(seed)
    print(f"{how}: seed {seed}")
    settings = (*RUNS[how], *OFTEN, f"recovery.memory_folder={memory}")
    job = start(*settings, program=("-m", "ssmpi", "launch")).until_it_trains()
    while struck < KILLS // len(RUNS):
        time.sleep(chance.uniform(0, CALM))
        ended = [strike(job, chance)]
        while chance.random() < 0.25:  # in the midst of the restart
            time.sleep(chance.uniform(0, 4))
            ended.append(strike(job, chance))
        struck += sum(map(bool, ended))
        began = time.monotonic()
        job.until(lambda: set().union(*ended).isdisjoint(job.ranks().values())).until_it_trains()  # noqa: B023 - called at once
        seconds.append(time.monotonic() - began)
    job.send(signal.SIGTERM)
    code, output = job.end(STOPPING)
    print(
        f"{struck} kills; seconds from the last of them to training: median {statistics.median(seconds):.1f}, "
        f"most {max(seconds):.1f}"
    )
    assert code == STOPPED, output
    assert list(memory.iterdir()) == []
    check_counts(job)


def check_counts(job):
    """Every row of every pass once: what is left says what was trained on. And what was scored twice was said."""
    result = json.loads((job.run / "result.json").read_text())
    recoveries = result["recoveries"]
    assert recoveries
    assert {each["how"] for each in recoveries} == {"memory"}
    saved = Checkpoint.at(Store(job.run).committed()[-1])
    position = Position.of_state(saved.state["position"])
    done = position.part * ROWS + (ROWS - position.left if position.dealt else 0)
    assert result["examples"] == saved.state["examples"] == done
    (scored,) = saved.scored()
    twice = scored.sums[SUMS.index("examples")] - done
    assert 0 <= twice <= BATCH * sum(each.get("batches_repeated", 0) for each in recoveries)
    places = [json.loads(line)["examples"] for line in job.told("train")]
    assert np.all(np.diff(places) >= 0)
