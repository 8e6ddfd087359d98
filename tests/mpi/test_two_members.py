"""Two trainers hold one replica: they train as one trainer does, and stop, resume and fail as others."""

import signal

import numpy as np
import pytest
from ranks import PATIENCE
from runs import train, train_over_threads
from test_stops import saved
from training_job import BROKEN, STOPPING, assert_names

from ssmpi.config import load
from ssmpi.model import brgemm
from ssmpi.model.member_program import transform
from ssmpi.runtime.errors import STOPPED

GROUP = ("topology.trainers=2", "topology.group=2")
ONE_LANE = (*GROUP, "hierarchy.homes=first")
WAYS = [
    ("data", "true", train),
    pytest.param("stages", "false", train, marks=pytest.mark.soak),  # real messages: sparse ones, below
    *((plan, "false", train_over_threads) for plan in ("data", "stages")),
    ("stages", "true", train_over_threads),
]


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
    np.testing.assert_array_equal(run.losses(), other.losses())
    for name, values in other.dense().items():
        np.testing.assert_array_equal(run.dense()[name], values, err_msg=name)
    for found, expected in zip(run.tables(), other.tables(), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("plan", "shared", "run_by"), WAYS)
def test_one_lane_is_one_trainer_to_the_bit(tmp_path, small_data, one, plan, shared, run_by):
    """And all bytes of both directions are those of the plan; none between members that share memory."""
    run = run_by(tmp_path, small_data, *ONE_LANE, *ways(plan, shared), "data.passes=2")
    assert_same(run, one)
    config, result = load(run.folder / "run.toml"), run.result
    part = transform(config.network, config.places, 0, 0)
    moved = part.moved(12_000, int(result["iterations"]), 2) if shared == "false" else 0
    assert (result["bytes"]["group"], result["examples"]) == (moved, one.result["examples"])


def test_sparse_edges_over_real_ranks_are_one_trainer(tmp_path, small_data):
    """To the bit, with a quarter of the entries of dense ones."""
    top_k, rules = 'model.top_k=["bottom.0: 0.75"]', 'hierarchy.tags=["bottom.0*: 1", "*: home"]'
    alone = train_over_threads(tmp_path / "alone", small_data, top_k)
    run = train(tmp_path / "group", small_data, *ONE_LANE, top_k, rules, "run.shared_memory=false")
    assert_same(run, alone)
    assert run.result["entries"]["group"] == 6_000 * (13 + 8 + 8)


@pytest.mark.parametrize("plan", ["data", "stages"])
@pytest.mark.parametrize("shared", ["true", "false"])
def test_all_lanes_of_both_members_train_every_row_once(tmp_path, small_data, plan, shared):
    """Whoever is done first: blocks are dealt to whoever asks."""
    lanes = (*GROUP, "topology.threads=2", f"hierarchy.plan={plan}", f"run.shared_memory={shared}")
    run = train_over_threads(tmp_path, small_data, *lanes, "evaluate.per_pass=3")
    assert run.result["examples"] == 6_000
    assert all(np.isfinite(run.losses(member)).all() for member in (0, 1))
    assert run.quality()["rows"] == 600


def test_two_lanes_of_each_member_over_real_ranks(tmp_path, small_data):
    """By messages; by memory they are in the job that is asked to stop, below."""
    stages = ways("stages", "false")
    run = train(tmp_path, small_data, *GROUP, "topology.threads=2", *stages, "evaluate.per_pass=2")
    assert run.result["examples"] == 6_000


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
