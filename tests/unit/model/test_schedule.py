"""The learning-rate schedule against the arithmetic of facebookresearch/dlrm's LRPolicyScheduler."""

import pytest

from ssmpi.model.options import Schedule

WARMUP, START, DECAY = 50, 120, 200


def reference(step):
    """Factor in the reference's step number ``step`` (from 1): ramp, then plateau, then a falling parabola."""
    if step < WARMUP:
        return 1.0 - (WARMUP - step) / WARMUP
    if START <= step < START + DECAY:
        return ((DECAY - (step - START)) / DECAY) ** 2
    return 1.0 if step < START else 0.0


@pytest.mark.parametrize("batch", [1, 128])
def test_follows_the_reference(batch):
    """The reference counts steps from 1, we count the examples before the step: it is one step ahead, and in the
    warm-up so much that the first step is not nothing. Where it ends at 0 we go on with next to nothing.
    """
    schedule = Schedule(WARMUP * batch, START * batch, DECAY * batch)
    for step in range(1, 400):
        factor = schedule.factor((step - 1) * batch)
        ahead = 1 / (WARMUP * batch) if step <= WARMUP else 0.0
        assert factor == pytest.approx(reference(step - 1) + ahead, abs=1e-12)
        assert 0 < factor <= 1


def test_with_batches_of_one_the_ramp_is_exactly_the_reference():
    schedule = Schedule(WARMUP, START, DECAY)
    assert [schedule.factor(step - 1) for step in range(1, WARMUP)] == pytest.approx(
        [reference(s) for s in range(1, WARMUP)]
    )


def test_by_default_the_rate_is_constant():
    assert {Schedule().factor(n) for n in (0, 1, 10**12)} == {1.0}


def test_power_one_is_a_straight_line():
    schedule = Schedule(0, 100, 100, power=1.0)
    assert [schedule.factor(n) for n in (0, 100, 125, 150, 175)] == pytest.approx([1, 1, 0.75, 0.5, 0.25])
    assert 0 < schedule.factor(10**9) < 1e-6


def test_never_rises_after_the_warm_up():
    schedule = Schedule(WARMUP, START, DECAY)
    factors = [schedule.factor(n) for n in range(500)]
    assert factors[:WARMUP] == sorted(factors[:WARMUP])
    assert factors[WARMUP:] == sorted(factors[WARMUP:], reverse=True)
