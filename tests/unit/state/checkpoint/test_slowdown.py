"""What checkpoints cost training: by a made-up clock, and in a run that is slower while one is written."""

import json
import time
from itertools import pairwise

import numpy as np
import pytest
from runs import train_over_threads

from ssmpi.model.replica import ThreadModel
from ssmpi.runtime.save_cost import SaveCost
from ssmpi.state.checkpoint import disk
from ssmpi.state.checkpoint.slowdown import LEAST_SECONDS, Slowdown


class Job:
    """Training by a clock that is told how long and how fast it was, and asked twenty times meanwhile."""

    def __init__(self, examples=5_000.0, seconds=70.0):
        self.slowdown, self.examples, self.seconds = Slowdown(), examples, seconds
        self.slowdown.tick(int(examples), seconds, writing=False)

    def trains(self, seconds, rate, *, writing=False):
        for _ in range(20):
            self.seconds += seconds / 20
            self.examples += rate * seconds / 20
            self.slowdown.tick(round(self.examples), self.seconds, writing=writing)

    def writes(self, seconds, rate):
        self.trains(seconds, rate, writing=True)
        return self.slowdown.end()


def test_seconds_lost_are_what_the_same_examples_would_not_have_taken():
    """By hand: 20 s at 600 examples a second are 12 s at 1,000."""
    job = Job()
    job.trains(100, 1_000)
    assert job.writes(20, 600) == pytest.approx(8)
    job.trains(100, 1_000)
    assert job.writes(20, 1_000) == pytest.approx(0, abs=1e-3)
    job.trains(100, 1_000)
    assert job.writes(20, 0) == 20  # it stood still
    assert job.writes(0, 1) == 0  # nobody has looked while it was written


def test_the_rate_before_is_the_recent_one():
    """By hand: 100 s at 2,000 after 100 s at 1,000, which count half, are 250,000 examples in 150 s."""
    job = Job()
    job.trains(100, 1_000)
    assert job.writes(10, 500) == pytest.approx(5)
    job.trains(100, 2_000)
    assert job.writes(10, 500) == pytest.approx(10 - 5_000 / (250_000 / 150))


@pytest.mark.parametrize(("before", "known"), [(0, False), (4.9, False), (5.1, True)])
def test_too_little_training_before_tells_no_rate(before, known):
    """As after a kill, when a checkpoint is due at once: the first steps are slow."""
    job = Job()
    job.trains(before, 1_000)
    assert job.writes(5, 500) == pytest.approx(2.5 * known)
    job.trains(2 * LEAST_SECONDS, 1_000)
    assert job.writes(20 * LEAST_SECONDS, 500) == pytest.approx(10 * LEAST_SECONDS)  # however long it is written


def test_chance_cancels_out_and_costs_are_never_less_than_the_standstill():
    """Rates that differ by 10 % from time to time, and 5 % less while checkpoints are written: 1 s of 20 is lost. A
    sum of what each has lost at least would have 0.8 s where nothing is lost.
    """
    draw = np.random.default_rng(3)
    for slower, expected in ((0.95, 1.0), (1.0, 0.0)):
        job, cost = Job(), SaveCost()
        for _ in range(2_000):
            job.trains(200, 1_000)
            lost = job.writes(20, 1_000 * draw.normal(slower, 0.1))
            assert SaveCost(0.5, lost).seconds >= 0.5
            cost = cost.plus(SaveCost(0.5, lost))
        assert cost.seconds / 2_000 == pytest.approx(0.5 + expected, abs=0.15)
    assert SaveCost(0.5, -1e-3).seconds == 0.5


def test_what_files_say_comes_back():
    cost = SaveCost(0.5, -0.25)
    assert SaveCost.of(cost.fields()) == cost
    assert SaveCost.of({"O_save": 0.5}) == SaveCost(0.5)  # of an earlier version
    assert SaveCost.of({}) == SaveCost()
    assert SaveCost(0.5, 0.25).describe() == "training stood still for 0.50 s and lost 0.25 s to slower steps"
    assert cost.describe() == "training stood still for 0.50 s"


@pytest.mark.parametrize("measured", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["booked", "measured"])
def test_slower_steps_while_a_checkpoint_is_written_are_booked(tmp_path, small_data, monkeypatch, measured):
    """Steps of 4 ms take 50 ms while the tables of the second checkpoint are written, which takes 5 of them."""
    steps, slow, created, forward_backward = [0], [], disk.created, ThreadModel.forward_backward

    def stepping(model, *arguments):
        steps[0] += 1
        time.sleep(0.05 if slow else 0.004)
        return forward_backward(model, *arguments)

    def creating(path):
        if path.name.startswith("embedding-") and path.parent.name.endswith("2"):
            slow.append(steps[0])
            while steps[0] < slow[0] + 5:
                time.sleep(0.001)
            slow.clear()
        return created(path)

    monkeypatch.setattr(ThreadModel, "forward_backward", stepping)
    monkeypatch.setattr(disk, "created", creating)
    often = ("checkpoint.every_examples=15000", "data.passes=6", "checkpoint.keep=9", "data.batch_size=50")
    run = train_over_threads(tmp_path, small_data, "evaluate.split=none", "evaluate.final=none", *often)
    metrics = (run.folder / "metrics.jsonl").read_text()
    lines = [line for line in map(json.loads, metrics.splitlines()) if line["kind"] == "checkpoint"]
    first, second = lines[:2]
    if measured:
        assert 0.05 < second["slowdown_seconds"] < second["write_seconds"]
        assert second["slowdown_seconds"] > first["slowdown_seconds"]
    for line in lines:
        assert line["O_save"] == SaveCost(line["standstill_seconds"], line["slowdown_seconds"]).seconds
    costs = [SaveCost(), *(SaveCost.of(line) for line in lines)]
    books = [{"checkpoints": 0.0, **SaveCost().fields()}]
    for path in sorted(run.folder.glob("checkpoints/*/manifest.json")):  # what a job that resumes there knows
        books.append(json.loads(path.read_text())["state"]["logbook"])
    for (before, book), cost in zip(pairwise(books), costs[1:], strict=True):
        assert book["checkpoints"] == before["checkpoints"] + 1
        assert SaveCost.of(book) == pytest.approx(SaveCost.of(before).plus(cost))
    assert run.result["O_save"] == pytest.approx(books[-1]["O_save"])
