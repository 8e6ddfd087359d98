"""Two trainers hold one replica: they train as one trainer does (real ranks too: ``test_real_ranks``), and stop, resume
and fail as others.
"""

import signal

import numpy as np
import pytest
from ranks import PATIENCE
from runs import assert_same_bits, train_over_threads
from test_stops import saved
from training_job import BROKEN, STOPPING, assert_names

from ssmpi.config import load
from ssmpi.model import brgemm
from ssmpi.model.member_program import transform
from ssmpi.runtime.errors import STOPPED

GROUP = ("topology.trainers=2", "topology.group=2")
ONE_LANE = (*GROUP, "hierarchy.homes=first")
WAYS = [*((plan, "false") for plan in ("data", "stages")), ("stages", "true")]


@pytest.fixture(scope="module")
def one(tmp_path_factory, small_data):
    """One trainer's run."""
    return train_over_threads(tmp_path_factory.mktemp("one"), small_data, "data.passes=2")


def ways(plan, shared):
    return f"hierarchy.plan={plan}", f"run.shared_memory={shared}"


def assert_same(run, other):
    """Losses, parameters and rows, to the bit; losses to rounding by MKL, which adds up by the addresses of values."""
    if not brgemm.kernels("fp32"):
        np.testing.assert_allclose(run.losses(), other.losses(), rtol=1e-3)
        return
    assert_same_bits(run, other)


def moved_by(run):
    """The bytes that members exchange, by the plan: both directions of messages, nothing where they share memory."""
    config, result = load(run.folder / "run.toml"), run.result
    part = transform(config.network, config.places, 0, 0)
    by_messages = not config.run.shared_memory
    return part.moved(result["examples"], int(result["iterations"]), config.data.passes) if by_messages else 0


@pytest.mark.parametrize(("plan", "shared"), WAYS)
def test_one_lane_is_one_trainer_to_the_bit(tmp_path, small_data, one, plan, shared):
    """And all bytes are those of the plan."""
    run = train_over_threads(tmp_path, small_data, *ONE_LANE, *ways(plan, shared), "data.passes=2")
    assert_same(run, one)
    assert (run.result["bytes"]["group"], run.result["examples"]) == (moved_by(run), one.result["examples"])


@pytest.mark.parametrize("plan", ["data", "stages"])
@pytest.mark.parametrize("shared", ["true", "false"])
def test_all_lanes_of_both_members_train_every_row_once(tmp_path, small_data, plan, shared):
    """Whoever is done first: blocks are dealt to whoever asks."""
    lanes = (*GROUP, "topology.threads=2", f"hierarchy.plan={plan}", f"run.shared_memory={shared}")
    run = train_over_threads(tmp_path, small_data, *lanes, "evaluate.per_pass=3")
    assert run.result["examples"] == 6_000
    assert all(np.isfinite(run.losses(member)).all() for member in (0, 1))
    assert run.quality()["rows"] == 600


def test_a_pause_loses_nothing_of_the_helpers(tmp_path, small_data):
    """Checkpoints and evaluations in between."""
    pauses = ("data.passes=2", "checkpoint.every_examples=1700", "evaluate.per_pass=2")
    alone = train_over_threads(tmp_path / "alone", small_data, *pauses)
    group = train_over_threads(tmp_path / "group", small_data, *ONE_LANE, *ways("data", "true"), *pauses)
    assert_same(group, alone)


# Ends


def test_a_stop_at_any_member_stops_all(start):
    job = start(*GROUP, "topology.threads=2", "hierarchy.plan=stages", ranks=3).until_it_trains()
    job.send(signal.SIGTERM, rank=1)
    code, output = job.end(STOPPING)
    assert code == STOPPED, output
    saved(job)


@pytest.mark.parametrize("shared", ["true", pytest.param("false", marks=pytest.mark.soak)])
def test_a_member_that_is_late_is_named(start, shared):
    slow = ("waiting.time_limit_seconds=20", f"run.shared_memory={shared}")
    program = (BROKEN, "freeze_helper", 1, "train")
    job = start(*ONE_LANE, "hierarchy.plan=stages", *slow, ranks=3, program=program).until_it_breaks()
    text = job.error(PATIENCE)
    assert_names(text, "trainer 0", 0, "no answer from trainer 1 within 20 s", "waiting.time_limit_seconds")
