"""How many examples the whole job has done, as each trainer believes it, which is what the learning rates follow."""

import threading
import time

import numpy as np
import pytest
from runs import train_over_threads

from ssmpi.model.options import Schedule
from ssmpi.trainer import build_trainer
from ssmpi.trainer.progress import ExampleTally, Progress

BLOCK, BATCH = 20, 100  # batches of a block, examples of a batch


def uneven(speeds, batches, tell=BLOCK):
    """A pass shared out block by block: trainer k does ``speeds[k]`` batches while others do theirs; each tells how far
    it is after every ``tell`` batches. Yields after every batch the trainer, what it believes of all, and what is.
    """
    total = batches * BATCH
    tally, waiting, left = ExampleTally(len(speeds)), batches // BLOCK, [0] * len(speeds)
    progress = [Progress(1, len(speeds), Schedule(), expected=total) for _ in speeds]
    logits, labels = np.zeros(BATCH, np.float32), np.zeros(BATCH, np.float32)
    turns, done = [1.0 / speed for speed in speeds], 0
    while waiting or any(left):
        who = min((k for k in range(len(speeds)) if left[k] or waiting), key=turns.__getitem__)
        turns[who] += 1.0 / speeds[who]
        if left[who] % tell == 0:
            progress[who].update_others(tally.others(who, progress[who].examples))
        if not left[who]:
            left[who], waiting = BLOCK, waiting - 1
        progress[who].record(0, logits, labels)
        left[who], done = left[who] - 1, done + BATCH
        yield who, progress[who].examples_of_all, done


@pytest.mark.parametrize("speeds", [(1, 1), (3, 1), (1, 3), (10, 1), (4, 2, 1, 1), (1,) * 8], ids=str)
@pytest.mark.parametrize("tell", [BLOCK, 2])
def test_all_trainers_know_how_far_the_job_is(speeds, tell):
    """Within what is done while the slowest of them tells once, whoever does most of the work: counting its own
    examples as those of all, each would be wrong by half of the run with speeds of 3 and 1.
    """
    batches, while_it_tells = 100 * BLOCK, tell * BATCH * sum(speeds) / min(speeds)
    behind = [0] * len(speeds)
    for who, believed, done in uneven(speeds, batches, tell):
        assert abs(believed - done) <= 1.5 * while_it_tells
        assert behind[who] <= believed <= batches * BATCH, "a trainer's count only grows, up to the end"
        behind[who] = believed
    assert max(behind) >= batches * BATCH - 1.5 * while_it_tells


def test_one_trainer_alone_knows_exactly():
    assert all(believed == done for _, believed, done in uneven((1,), 10 * BLOCK))


def test_nobody_counts_beyond_the_end_while_nothing_is_heard():
    """The others may be done, or slower than they were."""
    progress = Progress(1, 3, Schedule(), earlier=1_000, expected=5_000)
    batch = np.zeros(BATCH, np.float32)
    believed = []
    for _ in range(20):
        progress.record(0, batch, batch)
        believed.append(progress.examples_of_all)
    assert believed == sorted(believed)
    assert believed[0] == 1_300  # until it hears of them it takes the others for as fast as itself
    assert believed[-1] == 5_000


def test_a_run_of_uneven_trainers_knows_how_far_it_is(tmp_path, small_data, monkeypatch):
    """A trainer that does three quarters of a run believed at its end that half as much again was done, the other only
    half.
    """
    record, trainers, workers, found = Progress.record, [], [], []

    def uneven(progress, thread, logits, labels):
        record(progress, thread, logits, labels)
        if progress not in trainers:
            trainers.append(progress)
            workers.append(threading.current_thread())
        while progress is trainers[0] and (len(trainers) < 2 or workers[1].is_alive()):
            if len(trainers) == 2 and trainers[1].examples >= 3 * progress.examples:
                break
            time.sleep(0.001)
        found.append((progress.examples_of_all, sum(each.examples for each in trainers)))

    monkeypatch.setattr(Progress, "record", uneven)
    monkeypatch.setattr(build_trainer, "compile_kernels", lambda *_, **__: None)
    run = train_over_threads(
        tmp_path, small_data, "topology.trainers=2", "sync.algorithm=ma", f"data.batch_size={BATCH}"
    )
    rows = run.result["examples"]
    assert trainers[1].examples > 0.6 * rows
    for believed, done in found:
        assert believed <= rows
        assert abs(believed - done) < 0.25 * rows
