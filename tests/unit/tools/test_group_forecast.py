"""What ``plan --predict`` says of groups, against sums by hand."""

from dataclasses import replace

import pytest

from ssmpi.model.network import Inputs, floats_in
from ssmpi.model.options import ModelOptions
from ssmpi.model.parameters import OwnedParameters
from ssmpi.model.part import owned_rows
from ssmpi.model.places import PLANS, places_of
from ssmpi.model.zoo import network_of
from ssmpi.runtime.errors import SettingsError
from ssmpi.sync import ALL_TRAINERS, SYNC_PS
from ssmpi.tools import forecast
from ssmpi.tools.forecast import STEP, SYNC, Forecast, LinkSpeeds, Rounds
from ssmpi.tools.group_forecast import GROUP, LANES, MEMBER, WAITS, GroupWork, work_of
from ssmpi.tools.group_walk import Compute, Post, Take

DLRM = network_of(ModelOptions(), Inputs(dense=13, tables=26, dim=16))
P = 4 * 475_985  # bytes of Kaggle's parameters
COMPUTE = forecast.Compute(0.020, 100, 3)


def work(plan, batch=100, group=2, homes=(0, 1)):
    return work_of(DLRM, places_of(PLANS[plan](DLRM, group), DLRM, group), batch, homes)


def test_data_exchanges_parameters_and_shares_the_step_by_lanes():
    """A lane's gradients of what others own leave, as many weights come back; the owner's link carries them too."""
    for group in (2, 4):
        found = work("data", group=group, homes=range(group))
        lent = (group - 1) / group * P
        assert (found.path, found.busiest) == pytest.approx((1, 1 / group))
        assert found.waits == pytest.approx(2 * lent)
        places = places_of(PLANS["data"](DLRM, group), DLRM, group)
        most = 4 * max(floats_in(OwnedParameters(DLRM, rows).layout) for rows in owned_rows(DLRM, places))
        # new weights to all other homes, gradients of the rest
        assert found.carried == pytest.approx(((group - 1) * most + P - most) / group)
    first = work("data", homes=(0,))
    assert (first.path, first.busiest) == (1, 1)


def test_stages_exchange_values_and_the_larger_stage_decides():
    found = work("stages")
    top = sum(form.products for name, form in DLRM.forms.items() if name.startswith("top")) / sum(
        form.products for form in DLRM.forms.values()
    )
    assert (found.path, found.busiest) == pytest.approx((1, top), abs=0.01)
    assert 100 * 1562 / 2 < found.waits <= 100 * 1562
    assert work("stages", batch=200).waits == 2 * found.waits


def test_columns_shorten_the_path_of_a_lane():
    found = work("columns")
    half = sum(form.products for form in DLRM.forms.values() if form.parameters and form.width >= 256)
    total = sum(form.products for form in DLRM.forms.values())
    assert found.path == pytest.approx(1 - half / total / 2)
    assert found.busiest == pytest.approx(0.5)


GROUPED = Forecast(
    COMPUTE, LinkSpeeds(trainer=10e6),
    group=GroupWork(
        members=2, homes=2, path=0.8, busiest=0.5, waits=40_000, carried=30_000,
        steps=(((Compute(0.1),), ()), ((), (Compute(0.1),))),  # lanes that wait for nobody
    ),
)  # fmt: skip


def test_the_slowest_of_lanes_member_and_link_decides():
    """6 lanes of a replica: a cycle of 16 + 4 ms, 300 steps a second; a member 3 / 10 ms; the link 10 MB / 30 kB."""
    assert (GROUPED.of(2).eps, GROUPED.of(2).full) == (pytest.approx(30_000), LANES)
    assert GROUPED.of(8).eps == GROUPED.of(8).linear == pytest.approx(120_000)
    busy = replace(GROUPED, group=replace(GROUPED.group, busiest=0.67))
    assert (busy.of(2).eps, busy.of(2).full) == (pytest.approx(100 * 3 / 0.0134), MEMBER)
    narrow = replace(GROUPED, group=replace(GROUPED.group, carried=50_000))
    assert (narrow.of(2).eps, narrow.of(2).full) == (pytest.approx(20_000), GROUP)
    assert replace(GROUPED, links=LinkSpeeds()).of(2).eps == pytest.approx(100 * 3 / 0.010)
    first = replace(GROUPED, group=replace(GROUPED.group, homes=1))
    assert first.of(2).eps == pytest.approx(15_000)


def test_lanes_that_wait_for_each_other_are_slower_than_every_limit():
    """A member computes for two lanes at once on its one core, while the other has nothing to do: 2 x 16 ms each."""
    in_turns = (Compute(0.4), Post(0, 8, 1), Take(1, 8, 0)), (Take(0, 8, 1), Compute(0.4), Post(1, 8, 0))
    one = replace(GROUPED, compute=forecast.Compute(0.020, 100, 1), links=LinkSpeeds())
    alone = replace(one, group=replace(GROUPED.group, homes=1, steps=(in_turns,)))
    assert (alone.of(2).eps, alone.of(2).full) == (pytest.approx(100 / 0.016), LANES)
    slow = replace(alone, group=replace(alone.group, path=0.2))
    assert (slow.of(2).eps, slow.of(2).full) == (pytest.approx(100 / 0.016), WAITS)


def test_without_messages_a_group_of_two_is_two_trainers():
    """``data`` over links that cost nothing; ``stages`` of this DLRM can be 1.5 times as fast as one at most."""
    flat = Forecast(COMPUTE, LinkSpeeds())
    assert replace(flat, group=work("data")).of(8).eps == pytest.approx(flat.of(8).eps)
    assert replace(flat, group=work("stages")).of(8).eps / flat.of(4).eps == pytest.approx(1.5, abs=0.02)
    assert flat.of(8).full == STEP


def test_rounds_are_those_of_replicas_and_a_gap_counts_their_lanes():
    """A member's 50 kB over its own link, 5 ms a direction; iterations of 20 ms."""
    ring = replace(GROUPED, rounds=Rounds(ALL_TRAINERS, 50_000))
    assert ring.of(2).gap is None
    assert ring.of(4).gap == pytest.approx(2 * (1 - 1 / 2) * 0.005 / 0.020)
    by_thread = replace(GROUPED, links=LinkSpeeds(10e6, trainer=10e6), rounds=Rounds(SYNC_PS, 50_000, period=5))
    assert by_thread.link_capacity[SYNC] == pytest.approx(200 / 2 * 5 * 100)  # a lane's round is one of each member


def test_trainers_that_form_no_groups_are_refused():
    with pytest.raises(SettingsError, match="3 trainers are not groups of 2"):
        GROUPED.of(3)
