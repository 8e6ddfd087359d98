"""Full and partial recovery: formulas against a simulation and figures made by hand, limits, lost samples."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ssmpi.runtime.errors import SettingsError
from ssmpi.state.recovery.ledger import LossAccount, pls
from ssmpi.state.recovery.policy import (
    INPUTS,
    RecoveryInputs,
    between_checkpoints,
    compare,
    full,
    full_at,
    inputs_of,
    partial,
    partial_at,
)

HOUR = 3600.0
EXAMPLE = inputs_of(18, {})


def example_with(**hours):
    return replace(EXAMPLE, **{f"{name}_seconds": HOUR * value for name, value in hours.items()})


def simulated(job, interval, rng):
    """Hours of full and of partial recovery, and PLS, of one job: losses come at random and hit one PS at random."""
    total, accounts = job.total_seconds / HOUR, [LossAccount()] * job.servers
    lossless = job.save_seconds / HOUR * math.floor(total / interval)
    again = 0.0
    for at in sorted(rng.uniform(0, total, rng.poisson(total * HOUR / job.mtbf_seconds))):
        saved = at // interval * interval
        lossless += (job.load_seconds + job.restart_seconds) / HOUR
        again += at - saved
        victim = rng.integers(job.servers)
        accounts[victim] = accounts[victim].saved(samples(saved)).reloaded(samples(at))
    return lossless + again, lossless, pls(accounts, samples(total))


def samples(hours):
    return round(1e6 * hours)


@pytest.mark.parametrize(
    ("interval", "full_hours", "partial_hours", "expected"),
    [
        (1, 6.220, 5.220, 0.00099),
        (2, 4.700, 2.700, 0.00198),
        (4, 5.440, 1.440, 0.00397),
        (8, 8.810, 0.810, 0.00794),
        (14, 14.540, 0.540, 0.01389),
    ],
)
def test_overheads_and_pls_are_those_of_a_simulation(interval, full_hours, partial_hours, expected):
    """Of 56 h with 18 PSs and a loss in 28 h on average; an independent table has the same figures."""
    found, lossy = full_at(EXAMPLE, interval * HOUR), partial_at(EXAMPLE, interval * HOUR)
    assert found.overhead * 56 == pytest.approx(full_hours, abs=6e-4)
    assert lossy.overhead * 56 == pytest.approx(partial_hours, abs=6e-4)
    assert lossy.pls == pytest.approx(expected, abs=6e-6)
    rng = np.random.default_rng(interval)
    hours = np.mean([simulated(EXAMPLE, interval, rng) for _ in range(4_000)], axis=0)
    assert hours[0] == pytest.approx(full_hours, rel=0.03)
    assert hours[1] == pytest.approx(partial_hours, rel=0.02)
    assert hours[2] == pytest.approx(expected, rel=0.04)


def test_the_expected_pls_is_an_upper_bound():
    """With x losses of a PS between two saves it is 1 - (1 - exp(-x)) / x, not x / 2."""
    often = example_with(mtbf=2)
    x = 28 / (18 * 2)
    assert partial_at(often, 28 * HOUR).pls == pytest.approx(x / 2)
    rng = np.random.default_rng(1)
    found = np.mean([simulated(often, 28, rng)[2] for _ in range(500)])
    assert found == pytest.approx(1 - (1 - math.exp(-x)) / x, rel=0.03)
    assert found < 0.95 * x / 2


@pytest.mark.parametrize(
    ("servers", "hours"),
    [(8, (8.96, 22.4, 44.8)), (16, (17.92, 44.8, 89.6)), (18, (20.16, 50.4, 100.8)), (32, (35.84, 89.6, 179.2))],
)
def test_the_interval_follows_from_the_target(servers, hours):
    for target, expected in zip((0.02, 0.05, 0.1), hours, strict=True):
        job = replace(EXAMPLE, servers=servers, target_pls=target)
        assert partial(job).wanted / HOUR == pytest.approx(expected)
        assert partial(replace(job, total_seconds=1000 * HOUR)).pls == pytest.approx(target)


def test_the_best_interval_of_full_recovery_is_the_best_of_a_grid():
    best = full(EXAMPLE)
    grid = [full_at(EXAMPLE, best.interval * factor) for factor in np.linspace(0.2, 5, 4801)]
    nearest = min(grid, key=lambda strategy: strategy.overhead)
    assert nearest.interval == pytest.approx(best.interval, rel=2e-3)
    assert best.overhead <= nearest.overhead
    assert best.interval == pytest.approx(2.245 * HOUR, rel=2e-4)


def test_naive_partial_recovery_saves_one_of_two_equal_halves():
    found = compare(EXAMPLE)
    assert found.full.overhead - found.naive.overhead == pytest.approx(found.full.saving)


def test_the_documented_example():
    """56 h, 18 PSs, two losses: full recovery costs what CPR's abstract says, naive partial recovery half of it."""
    found = compare(EXAMPLE)
    assert (EXAMPLE.total_seconds, EXAMPLE.mtbf_seconds) == (56 * HOUR, 28 * HOUR)
    assert 0.082 <= found.full.overhead <= 0.085
    assert found.naive.overhead == pytest.approx(found.full.overhead / 2, rel=0.05)
    assert found.mode == "partial"
    assert found.chosen.overhead <= 0.007
    assert compare(replace(EXAMPLE, target_pls=0.02)).chosen.overhead == pytest.approx(0.0077, abs=5e-5)


def test_no_interval_is_longer_than_the_job():
    found = compare(EXAMPLE)
    assert found.partial.wanted == pytest.approx(100.8 * HOUR)
    assert found.partial.interval == EXAMPLE.total_seconds
    assert found.partial.pls == pytest.approx(56 / 28 / 18 / 2)  # not the target: less can be lost
    assert found.keeps_target
    rare = compare(example_with(mtbf=1e5))
    assert rare.full.interval == rare.partial.interval == rare.inputs.total_seconds
    assert rare.mode == "partial"


def test_partial_recovery_that_would_save_all_the_time_is_not_chosen():
    """Saving less often than the target wants loses more samples than the user accepts."""
    job = example_with(mtbf=0.1)
    found = compare(replace(job, target_pls=0.2, load_seconds=0.0, restart_seconds=0.0))
    assert found.partial.wanted < found.partial.interval == 10 * job.save_seconds
    assert found.partial.pls > found.inputs.target_pls
    assert found.partial.overhead < found.full.overhead
    assert not found.keeps_target
    assert found.mode == "full"


def test_a_job_shorter_than_ten_saves():
    """It saves once at most, and keeps a target that allows for that."""
    short = example_with(total=0.5)
    assert partial(short).interval == short.total_seconds
    assert compare(short).mode == "partial"
    strict = compare(replace(short, target_pls=1e-6))
    assert strict.partial.interval == short.total_seconds
    assert not strict.keeps_target
    assert strict.mode == "full"


def test_a_save_of_rows_and_a_checkpoint_each_have_their_own_cost():
    """By hand: T_full = sqrt(2 x 50 x 10,000) = 1,000 s, twice 50 / 1,000 = 10 %; T_part = 2 x .01 x 5 x 10,000
    = 1,000 s, and rows cost 20 or 200 s each time.
    """
    job = RecoveryInputs(
        total_seconds=1e5, mtbf_seconds=1e4, servers=5, save_seconds=50.0, row_save_seconds=20.0,
        load_seconds=0.0, restart_seconds=0.0, target_pls=0.01,
    )  # fmt: skip
    cheap, dear = compare(job), compare(replace(job, row_save_seconds=101.0, target_pls=0.0102))
    assert cheap.full.overhead == dear.full.overhead == pytest.approx(0.1)
    assert (cheap.partial.interval, cheap.partial.overhead) == (pytest.approx(1000), pytest.approx(0.02))
    assert cheap.naive.overhead == pytest.approx(0.05)  # it loads checkpoints
    assert dear.partial.overhead == pytest.approx(101 / 1020)
    assert (cheap.mode, dear.mode) == ("partial", "partial")
    assert compare(replace(job, row_save_seconds=101.0, target_pls=0.01)).mode == "full"  # 101 / 1,010 = 10 %
    assert compare(replace(job, row_save_seconds=99.0)).mode == "partial"


LOG = st.floats(-3, 3).map(lambda power: 10**power)
JOBS = st.builds(
    RecoveryInputs,
    total_seconds=LOG.map(lambda x: 1e5 * x),
    mtbf_seconds=LOG.map(lambda x: 1e5 * x),
    servers=st.integers(1, 100),
    save_seconds=LOG.map(lambda x: 10 * x),
    row_save_seconds=LOG.map(lambda x: 10 * x),
    load_seconds=st.just(60.0),
    restart_seconds=st.just(120.0),
    target_pls=st.floats(-5, 0).map(lambda power: 10**power),
)
ONCE = RecoveryInputs(  # both strategies save once in the job
    total_seconds=56 * HOUR,
    mtbf_seconds=1e5 * HOUR,
    servers=2,
    save_seconds=4000.0,
    row_save_seconds=4000.0,
    load_seconds=180.0,
    restart_seconds=144.0,
    target_pls=1e-7,
)


@given(JOBS)
@example(ONCE)
@example(replace(ONCE, target_pls=1e-4))
@example(replace(ONCE, target_pls=2e-4))
@example(replace(ONCE, target_pls=1e-6, total_seconds=600.0))
@example(replace(ONCE, row_save_seconds=4500.0))
@example(replace(ONCE, row_save_seconds=400.0, target_pls=1e-5))
def test_the_decision_keeps_the_target_and_costs_no_more_than_full_recovery(job):
    found = compare(job)
    assert found.chosen.pls <= job.target_pls * (1 + 1e-9)
    assert found.chosen.overhead <= found.full.overhead


@pytest.mark.parametrize("name", [name for name in INPUTS if name != "target_pls"] + ["servers", "target_pls"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_inputs_without_sense_are_refused(name, value):
    with pytest.raises(SettingsError, match="must be"):
        replace(EXAMPLE, **{name: value})


def test_lost_samples_of_a_schedule_made_by_hand():
    """1,000 samples, 4 PSs; states of all rows were taken at 300 and 600."""
    first, second, third = LossAccount(), LossAccount(), LossAccount()
    first = first.reloaded(100)  # before any save: back to the seed
    assert first.lost == 100
    first, second, third = (account.saved(300) for account in (first, second, third))
    second = second.reloaded(350).reloaded(420)  # a second loss before the next save counts from the first
    assert second.lost == 120
    first, third = first.reloaded(450), third.reloaded(450)  # two at once
    assert pls([first, second, third, LossAccount()], 1000) == pytest.approx((100 + 150 + 120 + 150) / 4000)
    assert [account.saved(600).reloaded(600).lost for account in (first, second, third)] == [250, 120, 150]


def test_a_loss_during_a_save_counts_from_the_newest_committed_state():
    account = LossAccount().saved(300)
    assert account.reloaded(650).lost == 350  # the state taken at 600 was not committed yet
    late = account.reloaded(650).saved(600)  # nor does committing it later return what was booked
    assert late.reloaded(700).lost == 400


def test_a_start_that_is_repeated_books_once():
    once = LossAccount(covered=300).reloaded(400)
    assert once.reloaded(400) == once


def test_a_loss_before_what_is_accounted_for_is_a_bug():
    with pytest.raises(AssertionError, match="before the 300"):
        LossAccount(covered=300).reloaded(299)


@pytest.mark.parametrize(("minutes", "pays"), [(5.0, False), (30.0, True), (math.inf, True)])
def test_a_run_is_priced_at_its_own_checkpoints(minutes, pays):
    """By hand: 0.02 x 9 x 7,200 s = 1,296 s between saves of 60 s; with a loss an hour, half the time between
    checkpoints is trained again. Where the job has no more than one loss rows are saved as often.
    """
    job = replace(EXAMPLE, total_seconds=2 * HOUR, mtbf_seconds=HOUR, target_pls=0.02, servers=9, row_save_seconds=60.0)
    saving = between_checkpoints(job, 60 * minutes)
    assert saving.interval == 0.02 * 9 * 2 * HOUR
    assert saving.saving == 60 / saving.interval
    assert saving.again == min(minutes / 60, 2) / 2
    assert (saving.keeps_target, saving.pays) == (True, pays)
    assert between_checkpoints(replace(job, mtbf_seconds=9 * HOUR), 60).interval == saving.interval
    assert between_checkpoints(replace(job, mtbf_seconds=HOUR / 2), 60).interval == saving.interval / 2
    assert not between_checkpoints(replace(job, row_save_seconds=saving.interval / 9.9), math.inf).pays
