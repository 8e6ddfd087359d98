"""Warm, partial or full: what the first rank decides from what all ranks have found of their memory."""

import itertools
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from runs import write_run_file

from ssmpi.data.schema import read_manifest
from ssmpi.embedding.placement import place
from ssmpi.runtime.files.log import log
from ssmpi.runtime.mpi.memory_file import MemoryFile, Origin
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.run_options import RecoveryOptions
from ssmpi.runtime.topology import Topology
from ssmpi.state.recovery import inputs as recovery_inputs
from ssmpi.state.recovery import row_saves
from ssmpi.state.recovery.choice import FULL, MEMORY, PARTIAL, Found, choose
from ssmpi.state.recovery.explain import summary
from ssmpi.state.recovery.inputs import (
    AS_ROWS,
    AS_SAVE,
    DEFAULT,
    ESTIMATED,
    GIVEN,
    INPUTS,
    MEASURED,
    SETTING,
    Source,
    collect,
    estimated,
    from_run,
    from_settings,
    inputs_of,
)
from ssmpi.state.recovery.ledger import Ledger, LossAccount
from ssmpi.state.recovery.policy import compare
from ssmpi.state.recovery.row_saves import PolicyInputs, RowSaves
from ssmpi.state.recovery.state import RecoveryState
from ssmpi.trainer.metrics.results import RunResults

TOPOLOGY = Topology(trainers=2, embedding_ps=2, sync_ps=1)  # ranks 0, 1; 2, 3; 4
PAYS = compare(inputs_of(18, {}))
COSTS = compare(inputs_of(18, {"target_pls": 0.001}))
MISSES = compare(replace(inputs_of(18, {}), mtbf_seconds=1.0))


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


def test_a_decision_of_the_policy_is_one_clause():
    assert "partial recovery costs not less than full recovery: " in summary(COSTS)
    assert "partial recovery cannot keep the target PLS of 0.1" in summary(MISSES)
    assert summary(PAYS).startswith("partial recovery costs less than full recovery: 0.482 % of the job against 8.34")
    alike = replace(PAYS, full=PAYS.partial)
    assert "recovery costs as much as full recovery, 0.482 % of the job, at" in summary(alike)


def inputs(options, servers, measured):
    """Of a run whose embedding PSs have 1 GB each."""
    estimate = Source(ESTIMATED, estimated(1e9, background=True))
    return collect(servers, estimate, Source(MEASURED, measured), Source(SETTING, from_settings(options))).inputs


def test_measured_inputs_win_over_defaults_and_settings_over_those():
    numbers = {"examples": 1_000.0, "seconds": 10.0, "checkpoints": 4.0, "O_save": 2.0}
    earlier = [
        {"seconds": {"ranks": 2.0, "restore": 1.0}},  # from the end of a start to the decision, and on to training
        {"seconds": {"ranks": 5.0, "load": 0.5}},  # killed before it trained
        {"seconds": {"ranks": -1e10}},
    ]
    measured = from_run(numbers, 36_000, earlier[:2])
    found = inputs(RecoveryOptions(target_pls=0.02, mtbf_hours=7.0), 3, measured)
    assert (found.total_seconds, found.save_seconds) == (360.0, 0.5)
    assert (found.restart_seconds, found.load_seconds) == (4.0, 0.5)
    assert (found.target_pls, found.mtbf_seconds, found.servers) == (0.02, 7 * 3600.0, 3)
    assert found.row_save_seconds == 0.5  # none was saved beside training yet: as a checkpoint
    assert inputs(RecoveryOptions(), 3, from_run(numbers, 36_000, [], 0.25)).row_save_seconds == 0.25
    assert from_run({}, 36_000, earlier[2:]) == {}  # hosts whose clocks differ
    assert inputs(RecoveryOptions(), 3, {}) == replace(
        inputs_of(3, {}), save_seconds=2.0, row_save_seconds=2.0, row_save_wall_seconds=2.0, load_seconds=5.0
    )
    slow = inputs(RecoveryOptions(), 3, from_run(numbers, 36_000, [], 0.25, 90.0))
    assert (slow.row_save_seconds, slow.row_save_wall_seconds) == (0.25, 90.0)


def test_each_input_is_what_is_known_best_and_says_where_it_comes_from():
    """By hand: 4 GB are 8 s at 500 MB/s and 20 s at 200 MB/s. Rows cost what a checkpoint does where that alone is
    better known than by an estimate.
    """
    estimate = Source(ESTIMATED, estimated(4e9, background=True))
    setting = Source(SETTING, {"target_pls": 0.02})
    found = collect(18, estimate, setting)
    assert found.describe() == (
        "PLS 0.02 by the settings; O_save 8 s, O_rows 8 s, O_load 20 s estimated; T_total 56 h, T_fail 28 h,"
        " O_res 2.4 min by default"
    )
    waits = collect(18, Source(ESTIMATED, estimated(4e9, background=False)))
    assert (waits.inputs.save_seconds, waits.inputs.row_save_seconds) == (20, 8)
    saved = Source(MEASURED, {"save_seconds": 3.0})
    found = collect(18, estimate, saved, setting)
    assert (found.inputs.save_seconds, found.inputs.row_save_seconds) == (3, 3)
    assert (found.origins["save_seconds"], found.origins["row_save_seconds"]) == (MEASURED, AS_SAVE)
    found = collect(18, estimate, Source(MEASURED, {"row_save_seconds": 0.5}), Source(GIVEN, {"save_seconds": 2.0}))
    assert (found.inputs.save_seconds, found.inputs.row_save_seconds) == (2, 0.5)
    assert [found.origins[name] for name in INPUTS] == [
        DEFAULT, DEFAULT, GIVEN, MEASURED, AS_ROWS, ESTIMATED, DEFAULT, DEFAULT,
    ]  # fmt: skip


def test_a_run_that_has_measured_nothing_decides_by_its_states_size(tmp_path, small_data):
    """A job that may lose few samples: 324 s a save, those of CPR's example, would be too many; its rows take less."""
    options = ("topology.embedding_ps=2", "recovery.mtbf_hours=10", "recovery.target_pls=0.01")
    config = write_run_file(tmp_path, small_data, *options)
    found = PolicyInputs(config).by_numbers({})
    most = place(read_manifest(small_data).cardinalities, 2).most_rows
    assert found.inputs.save_seconds == most * (4 * 8 + 4) / 500e6  # a row of 8 floats with its state
    assert found.origins["save_seconds"] == ESTIMATED
    assert compare(found.inputs).mode == "partial"
    assert compare(replace(found.inputs, save_seconds=324.0, row_save_seconds=324.0)).mode == "full"


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


def test_a_run_says_what_it_would_do_and_decides_by_what_it_has_measured(tmp_path, small_data, caplog, monkeypatch):
    """By an estimate it would have to save more often than it can; its own saves cost next to nothing."""
    settings = ("topology.embedding_ps=2", "recovery.mtbf_hours=1e-3", "recovery.target_pls=0.001")
    config = write_run_file(tmp_path, small_data, *settings)
    caplog.set_level("DEBUG", log.name)
    monkeypatch.setattr(recovery_inputs, "SAVE_RATE", 1.0)  # bytes a second
    begin_row_saves(config, tmp_path)
    assert (
        "an embedding PS is lost, recovery is partial up to a PLS of 0.001, else full; rows are saved in checkp"
        in caplog.text
    )
    assert "checkpoints alone: partial recovery cannot keep" in caplog.text
    assert "PLS 0.001 by the settings; O_save" in caplog.text
    numbers = {"examples": 600.0, "seconds": 10.0, "checkpoints": 2.0, "O_save": 1e-6}
    _, found = PolicyInputs(config).compare(numbers, None)
    assert (found.given.total_seconds, found.given.save_seconds) == (pytest.approx(100), pytest.approx(5e-7))
    assert found.mode == "partial"
    caplog.clear()
    for quiet in ("recovery.mode=partial", "topology.embedding_ps=0"):
        begin_row_saves(write_run_file(tmp_path, small_data, *settings, quiet), tmp_path)
    assert caplog.text == ""


def begin_row_saves(config, folder):
    """As the first trainer of a new run does."""
    results = Told(folder)
    results.numbers = dict
    RowSaves(config, results, results, RecoveryState(folder, MemoryFile(folder / "m", Origin("run", "t", 1))))


class Told:
    """Embedding PSs, and the results of a run: 6,000 examples in 10,000 s, four checkpoints of 0.5 s each."""

    def __init__(self, folder):
        self.folder, self.logbook, self.saves, self.status_lines = folder, self, [], []

    def numbers(self):
        return {"examples": 6_000.0, "seconds": 10_000.0, "checkpoints": 4.0, "O_save": 2.0}

    def exchange_status(self, examples, saves_rows):
        self.saves.append(saves_rows)
        lines, self.status_lines = self.status_lines, []
        return lines

    def rows_saved(self, lines, recorded):
        for server, seconds, cost in lines:
            RecoveryState(self.folder).rows_saved(server, seconds, cost)
        if recorded:
            recorded()


def told_of(config):
    run = Path(config.run.folder)
    run.mkdir(parents=True, exist_ok=True)
    return Told(run)


def test_rows_are_saved_while_that_is_cheaper(tmp_path, small_data, caplog, monkeypatch):
    """By hand: checkpoints every 288 s cost 0.5 / 288 = 0.17 %, training again 144 / 3,600 = 4 %, each loss 144 / 3,600
    = 4 % besides. At T_part = 2 x 0.01 x 2 x 3,600 = 144 s rows are saved once between two checkpoints: 11.5 s cost as
    much. The run changes where the other way is 10 % cheaper: to full recovery at (8.17 / 0.9 - 4.17) % x 288 = 14.14
    s, back at (8.17 x 0.9 - 4.17) % x 288 = 9.17 s. The first save of rows is told, too.
    """
    settings = ("topology.embedding_ps=2", "recovery.mtbf_hours=1", "recovery.target_pls=0.01")
    settings += ("checkpoint.every_minutes=4.8",)
    config, memory = write_run_file(tmp_path, small_data, *settings), MemoryFile(tmp_path / "m", Origin("run", "t", 1))
    told, said = told_of(config), []
    monkeypatch.setattr(row_saves, "DECISION_SECONDS", 0.0)
    caplog.set_level("DEBUG", log.name)
    saves = RowSaves(config, told, told, RecoveryState(told.folder, memory))
    for cost in (0.0, 11.4, 11.6, 14.1, 11.4, 14.2, 11.4, 11.6, 9.2, 9.1, 13.0):
        told.status_lines = [(0, 0.01, 0.01), (1, cost, cost)] if cost else []
        saves.exchange(6_000)
        saves.exchange(6_000)  # by what that one has brought
        said.append(len(caplog.messages))
    assert told.saves[1::2] == [True] * 5 + [False] * 4 + [True] * 2
    assert said == [1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4]
    assert {record.levelname for record in caplog.records} == {"DEBUG"}  # for the log file, not for the terminal
    plan, first, rest, again = caplog.messages
    assert plan.startswith(
        "if the memory of an embedding PS is lost, recovery is partial up to a PLS of 0.01, else full;"
    )
    assert "embedding PSs save rows beside checkpoints: partial recovery costs less" in first
    assert "T_total 2.78 h, O_save 500 ms, O_rows 11.4 s, T_rows 11.4 s measured; " in first
    assert rest == (
        "the embedding PSs save no rows beside checkpoints from now on: partial recovery costs not less than full"
        " recovery: 9.1 % of the job against 8.17 %, at an expected PLS of 0.01 (T_total 2.78 h, O_save 500 ms, O_rows"
        " 14.2 s, T_rows 14.2 s measured; T_fail 60 min, PLS 0.01 by the settings; O_load 1.84 ms estimated; O_res 2.4"
        " min by default)"
    )
    assert "embedding PSs save rows beside checkpoints from now on: " in again
    known = PolicyInputs(config)
    assert known.compare(told.numbers(), None)[1].mode == "full"
    stays = summary(known.compare(told.numbers(), "partial")[1])
    assert "costs not less than full recovery: 8.69 % of the job against 8.17 %, too little to" in stays
    RowSaves(config, told, told, RecoveryState(told.folder, memory)).exchange(
        6_000
    )  # after a kill the run still does what it has decided
    assert told.saves[-1]
    for other, kept in ((("recovery.mode=partial",), memory), ((), ProcessMemory())):
        told.saves.clear()
        RecoveryState(told.folder).rows_saved(1, seconds=3.0, cost=3.0)
        other = write_run_file(tmp_path, small_data, *settings, *other)
        RowSaves(other, told, told, RecoveryState(told.folder, kept)).exchange(6_000)
        assert told.saves == [True]


def test_rows_rest_where_their_saves_take_too_long_for_the_target(tmp_path, small_data, monkeypatch, caplog):
    """Of 0.01 s of a processor each, but of 20 s: 144 s are wanted, as above, and every 200 s is what can be."""
    settings = ("topology.embedding_ps=2", "recovery.mtbf_hours=1", "recovery.target_pls=0.01")
    config, memory = write_run_file(tmp_path, small_data, *settings), MemoryFile(tmp_path / "m", Origin("run", "t", 1))
    monkeypatch.setattr(row_saves, "DECISION_SECONDS", 0.0)
    caplog.set_level("DEBUG", log.name)
    told = told_of(config)
    saves = RowSaves(config, told, told, RecoveryState(told.folder, memory))
    told.status_lines = [(0, 0.01, 0.01), (1, 20.0, 0.01)]
    saves.exchange(6_000)
    saves.exchange(6_000)
    assert told.saves == [True, False]
    _, said = caplog.messages
    assert (
        "save no rows beside checkpoints from now on: partial recovery cannot keep the target PLS of 0.01:"
        " it would have to save every 2.4 min,"
        " and one save of all rows takes 20 s; at one every 3.33 min the expected PLS is 0.014 (" in said
    )


def test_deciding_again_waits_for_no_disk(tmp_path, small_data, monkeypatch):
    """The first trainer does it between two answers to requests for blocks."""
    config = write_run_file(tmp_path, small_data, "topology.embedding_ps=2")
    memory, told, at_the_disk = MemoryFile(tmp_path / "m", Origin("run", "t", 1)), told_of(config), []
    results = RunResults(told.folder, config.run, config.topology, 1_000)
    saves = RowSaves(config, told, results, RecoveryState(told.folder, memory))
    monkeypatch.setattr(row_saves, "DECISION_SECONDS", 0.0)

    def on_any_thread(owner, name):
        whole = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *words, **named: at_the_disk.append(threading.get_ident()) or whole(*words, **named)
        )

    for owner, name in ((Path, "read_text"), (Path, "read_bytes"), (os, "fsync")):
        on_any_thread(owner, name)
    for cost in (0.0, 1.0, 0.0):
        line = {"ps": 0, "rows": 1, "covered": 1.0, "all_rows_seconds": cost, "all_rows_cost": cost}
        told.status_lines = [line] if cost else []
        saves.exchange(6_000)
    assert told.saves == [True] * 3
    assert results._behind.settle()
    assert at_the_disk
    assert threading.get_ident() not in at_the_disk
    assert saves._inputs._record.row_save_seconds == 1.0


@pytest.mark.parametrize(("servers", "fraction", "always"), [(1, 0.5, True), (2, 0.5, False), (1, 1.0, False)])
def test_where_no_server_may_be_lost_recovery_is_announced_as_full(
    tmp_path, small_data, caplog, servers, fraction, always
):
    settings = (f"topology.embedding_ps={servers}", f"recovery.max_lost_fraction={fraction}")
    config = write_run_file(tmp_path, small_data, *settings)
    caplog.set_level("DEBUG", log.name)
    begin_row_saves(config, tmp_path)
    assert (
        ("recovery is full: recovery.max_lost_fraction = 0.5 allows no lost embedding PS of 1" in caplog.text)
        == always
        == (not config.saves_rows)
    )
    assert ("; 'ssmpi plan --recovery' shows" in caplog.text) != always
