"""Warm, partial or full: what the first rank decides from what all ranks have found of their memory; and when rows are
saved.
"""

import itertools
import math
from dataclasses import replace

import pytest
from runs import write_run_file

from ssmpi.data.schema import read_manifest
from ssmpi.runtime.run_options import RecoveryOptions
from ssmpi.runtime.topology import Topology
from ssmpi.state.checkpoint.rows.saver import SaveSchedule
from ssmpi.state.recovery import policy
from ssmpi.state.recovery.decision import FULL, MEMORY, PARTIAL, Found, choose
from ssmpi.state.recovery.ledger import Ledger, LossAccount
from ssmpi.state.recovery.policy import inputs_of
from ssmpi.state.recovery.row_saves import schedule_of

TOPOLOGY = Topology(trainers=2, embedding_ps=2, sync_ps=1)  # ranks 0, 1; 2, 3; 4


def expected(states, mode, fraction):
    """The same by the rule in words; ``states`` are ``whole``, ``lost`` or ``old``."""
    lost = [rank for rank, state in enumerate(states) if state != "whole"]
    if states[0] == "lost":
        return FULL
    if not lost:
        return MEMORY
    if 0 in lost or mode == "full":
        return FULL
    servers = len({2, 3}.intersection(lost))
    if servers / 2 > fraction:
        return FULL
    return PARTIAL


@pytest.mark.parametrize("mode", ["auto", "partial", "full"])
def test_every_combination_of_what_is_left_is_decided_by_the_rule(mode):
    kinds = {"whole": Found("", 3), "lost": Found("m: it is gone"), "old": Found("", 1)}
    for fraction, states in itertools.product((0.0, 0.5, 1.0), itertools.product(kinds, repeat=5)):
        options = RecoveryOptions(mode=mode, max_lost_fraction=fraction)
        starts = () if states[0] == "lost" else (3,) * 5
        choice = choose([kinds[s] for s in states], starts, TOPOLOGY, options)
        assert choice.how == expected(states, mode, fraction), (states, fraction, choice)
        if starts:
            assert choice.lost == tuple(rank for rank, state in enumerate(states) if state != "whole")
        assert bool(choice.why) == (choice.how != MEMORY)


def test_memory_of_a_start_that_never_trained_is_lost():
    """Every rank has its memory, and the first trainer no note of it."""
    why = "the memory of trainer 0 is lost (the last start was killed before every rank had its memory)"
    choice = choose([Found("", 1)] * 5, (), TOPOLOGY, RecoveryOptions())
    assert (choice.how, choice.lost) == (FULL, (0,))
    assert choice.why.startswith(why)


def test_a_rank_may_have_been_made_anew_by_a_later_start_than_the_others():
    found = [Found("", 1), Found("", 1), Found("", 4), Found("", 1), Found("", 1)]
    assert choose(found, (1, 1, 4, 1, 1), TOPOLOGY, RecoveryOptions()).how == MEMORY
    choice = choose(found, (1, 1, 5, 1, 1), TOPOLOGY, RecoveryOptions())
    why = "the memory of embedding_ps 0 is lost (what is there is that of start 4, not 5)"
    assert choice == (PARTIAL, (2,), why)


@pytest.mark.parametrize(
    ("lost", "options", "said"),
    [
        ((0, 3), {}, "the memory of trainer 0, embedding_ps 1 is lost (gone), and the first trainer's is needed"),
        ((3,), {"mode": "full"}, "recovery.mode = 'full'"),
        ((2, 3), {}, "and recovery.max_lost_fraction = 0.5 allows 1 lost embedding PSs"),
        ((1, 2, 3, 4), {"max_lost_fraction": 1.0}, "trainer 1, embedding_ps 0, embedding_ps 1 and 1 others"),
    ],
)
def test_the_decision_is_one_plain_sentence(lost, options, said):
    found = [Found("gone") if rank in lost else Found("", 1) for rank in range(5)]
    starts = () if 0 in lost else (1,) * 5
    assert said in choose(found, starts, TOPOLOGY, RecoveryOptions(**options)).why


GROUPS = Topology(4, embedding_ps=1, sync_ps=1, group=2)  # trainers 0 to 3; then rank 4; with a center rank 5
NO_CENTER = replace(GROUPS, sync_ps=0)


@pytest.mark.parametrize(
    ("topology", "lost", "alone"),
    [
        (NO_CENTER, (1,), ""),
        (NO_CENTER, (3,), ""),
        (NO_CENTER, (1, 3), "trainer 1"),
        (NO_CENTER, (1, 2, 3), "trainer 1"),
        (GROUPS, (1, 3), ""),  # the center has their parameters
        (GROUPS, (1, 5), ""),
        (GROUPS, (1, 3, 5), "trainer 1"),
    ],
)
def test_a_lost_member_needs_another_one_or_a_center(topology, lost, alone):
    found = [Found("gone") if rank in lost else Found("", 1) for rank in range(topology.size)]
    choice = choose(found, (1,) * topology.size, topology, RecoveryOptions(mode="partial"))
    assert choice.how == (FULL if alone else PARTIAL)
    assert (f"neither another group nor a sync PS has the parameters of {alone}" in choice.why) == bool(alone)


def test_a_ledger_books_by_ps_and_keeps_what_is_lost():
    ledger = Ledger.begin([1] * 5, 2, None, 0).reloaded({3: 2}, {1: 400}, 1_000)
    assert ledger.starts == (1, 1, 1, 2, 1)
    assert ledger.accounts == (LossAccount(), LossAccount(1_000, 600))
    ledger = ledger.reloaded({2: 3, 3: 3}, {0: 400, 1: 400}, 1_100)  # again before the next save: since the reload
    assert ledger.samples_lost == 600 + 700 + 100
    assert ledger.pls(10_000) == 0.5 * 1_400 / 10_000
    assert Ledger.of_state(ledger.state()) == ledger
    assert ledger.reloaded({3: 4}, {1: 400}, 1_050).samples_lost == 1_400  # rows of a lost trainer are dealt again
    resumed = Ledger.begin([1] * 4, 1, ledger.state(), 900)
    assert (resumed.accounts, resumed.pls(10_000)) == ((LossAccount(900),), ledger.pls(10_000))


def test_unknown_costs_are_estimated_and_a_save_of_rows_is_taken_to_cost_a_checkpoint():
    """By hand: 4 GB are 8 s at 500 MB/s and 20 s at 200 MB/s."""
    job = inputs_of(3, {"target_pls": 0.02}, 4e9)
    assert (job.save_seconds, job.row_save_seconds, job.load_seconds, job.target_pls) == (8, 8, 20, 0.02)
    assert job.mtbf_seconds == 504 * 3600 / 3
    assert inputs_of(3, {}, 4e9, background=False).save_seconds == 20
    assert inputs_of(3, {"save_seconds": 3.0}, 4e9).row_save_seconds == 3
    assert inputs_of(3, {"save_seconds": 3.0, "row_save_seconds": 0.5}, 4e9).row_save_seconds == 0.5


NEVER = SaveSchedule(0.5, math.inf)


@pytest.mark.parametrize(
    ("settings", "earlier", "saved"),
    [
        ((), 0.0, True),  # the size of the rows says next to nothing
        ((), 5.7, True),
        ((), 5.8, False),  # PLS N T_ckpt = 0.01 x 2 x 288 s = 5.76 s
        (("checkpoint.every_minutes=9.6",), 5.8, True),
        (("checkpoint.every_minutes=0",), 14.0, True),
        (("checkpoint.every_minutes=0",), 14.5, False),  # every 144 s; ten times as long
        (("recovery.mode=partial",), 14.5, True),
    ],
)
def test_rows_are_saved_where_that_costs_less_than_training_again(tmp_path, small_data, settings, earlier, saved):
    """By hand: T_save = 2 x 0.01 x 2 x 3,600 s = 144 s, and after 0.01 x 2 of the samples one loss costs the target."""
    job = ("topology.embedding_ps=2", "recovery.mtbf_hours=1", "recovery.target_pls=0.01", "data.passes=3")
    config = write_run_file(tmp_path, small_data, *job, "checkpoint.every_minutes=4.8", *settings)
    most_samples = 0.02 * 3 * read_manifest(small_data).split("train").rows
    expected = SaveSchedule(0.5, 144.0, 10.0, most_samples) if saved else NEVER
    assert schedule_of(config, 1_000, 0.5, earlier) == expected


def test_a_run_without_earlier_saves_decides_by_the_size_of_its_rows(tmp_path, small_data, monkeypatch):
    config = write_run_file(tmp_path, small_data, "topology.embedding_ps=2")
    assert schedule_of(config, 1_000, 1.0, 0.0).interval == pytest.approx(2 * 0.1 * 504 * 3600)
    monkeypatch.setattr(policy, "SAVE_RATE", 1.0)  # bytes a second
    assert schedule_of(config, 1_000, 0.5, 0.0) == NEVER
