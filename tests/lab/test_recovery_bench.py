"""The emulation of losses: what a loss changes and what it does not, and its accounts against those done by hand."""

import itertools
import json
import math
import os
import re
from dataclasses import replace

import datasets
import numpy as np
import pytest
from datasets import make_dataset
from runs import SMALL_MODEL

from jobs.lab.__main__ import parser
from jobs.lab.options import EmulationOptions
from jobs.lab.recovery import recovery, table
from jobs.lab.recovery.emulation import Loss, RecoveryEmulation, SavingStrategy, schedule
from jobs.lab.recovery.recovery import NO_LOSS, strategies
from jobs.lab.recovery.training import Training
from ssmpi.bench import data
from ssmpi.cli import main
from ssmpi.config import load
from ssmpi.embedding.trackers import largest_tables
from ssmpi.runtime.errors import SettingsError
from ssmpi.state.recovery import ledger
from ssmpi.state.recovery.policy import HOUR, inputs_of

SERVERS = 5
GIVEN = inputs_of(SERVERS, {})  # 56 h
BATCHES = 6_000 // 100
BY_NAME = {strategy.name: strategy for strategy in strategies(GIVEN)}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def config(tmp_path, small_data):
    path = tmp_path / "run.toml"
    path.write_text(f'[data]\nfolder = "{small_data}"\nbatch_size = 100\npasses = 1')
    return load(path, (*SMALL_MODEL, f"topology.embedding_ps={SERVERS}"))


@pytest.fixture
def emulate(tmp_path, config):
    """The emulation after its run, and the outcome."""

    def run(strategy, *losses):
        emulation = RecoveryEmulation(config, GIVEN, strategy, tmp_path / f"{strategy.name}-{len(losses)}")
        return emulation, emulation.run(list(losses))

    return run


def state_of(emulation):
    """Everything that is learned: the dense part, and the rows of each PS."""
    rows = [np.concatenate([a.weights.ravel(), a.state.ravel()]) for a in emulation.training.arenas]
    return np.concatenate(emulation.training.dense()), rows


def at(batch, *servers):
    """A loss after this many batches."""
    return Loss(GIVEN.total_seconds * batch / BATCHES, servers)


def test_full_recovery_is_as_if_nothing_had_been_lost(emulate):
    strategy = SavingStrategy("full", GIVEN.total_seconds / 7, full=True)
    before, without = emulate(BY_NAME[NO_LOSS])
    after, outcome = emulate(strategy, at(4, 0), at(30, 1, 2), at(47, 3), at(58, 4))
    for one, other in zip(state_of(before), state_of(after), strict=True):
        np.testing.assert_equal(one, other)
    assert (outcome.ne, outcome.auc) == (without.ne, without.auc)
    assert outcome.pls == outcome.updates_lost == 0
    again = [4 - 0, 30 - 26, 47 - 43, 58 - 51]  # saves after 9, 17, 26, 34, 43, 51 and 60 batches
    assert outcome.lost == pytest.approx(sum(again) / BATCHES)
    assert outcome.losses == 4
    assert outcome.loading == pytest.approx(4 * 180 / (56 * HOUR))
    assert outcome.restarting == pytest.approx(4 * 144 / (56 * HOUR))
    assert outcome.saving == pytest.approx(7 * 324 / (56 * HOUR))


def test_a_partial_recovery_takes_the_lost_rows_back_and_nothing_else(tmp_path, config):
    """To the bit, right after it."""
    emulation = RecoveryEmulation(config, GIVEN, SavingStrategy("vanilla", GIVEN.total_seconds / 3), tmp_path)
    seen = {}
    save, lose = emulation._save, emulation._lose

    def saving(done):
        save(done)
        seen["saved"] = state_of(emulation)

    def losing(loss, done):
        dense, rows = state_of(emulation)
        assert lose(loss, done) == done
        dense_after, rows_after = state_of(emulation)
        np.testing.assert_array_equal(dense, dense_after)
        for index in range(SERVERS):
            expected = seen["saved"][1] if index in loss.servers else rows
            np.testing.assert_array_equal(rows_after[index], expected[index])
            assert index not in loss.servers or np.any(rows[index] != rows_after[index])
        seen["lost"] = done

    emulation._save = saving
    emulation._lose = lambda loss, done: losing(loss, done) or done
    emulation.run([at(34, 1, 4)])
    assert seen["lost"] == 34


def test_pls_and_updates_lost_are_those_counted_by_hand(emulate, config):
    strategy = SavingStrategy("vanilla", GIVEN.total_seconds / 3)  # saves after 20, 40 and 60 batches
    emulation, outcome = emulate(strategy, at(10, 0), at(30, 1, 2), at(35, 2))
    lost = 10 * 100 + 2 * (30 - 20) * 100 + (35 - 30) * 100
    assert outcome.pls == pytest.approx(lost / (6_000 * SERVERS))
    plan, of_server, of_large, once = emulation.training.placement, [], [], []
    large = sorted(largest_tables(plan.cardinalities))
    assert 1 < len(large) < 26
    for batch in emulation._batches.from_number(0):
        part = batch.ids % plan.strides
        owners = plan.owners[np.arange(26), part]
        rows = np.unique(np.stack([owners, np.tile(np.arange(26), (len(batch), 1)), batch.ids]).reshape(3, -1), axis=1)
        once.append(np.bincount(rows[0], minlength=SERVERS))
        of_server.append(np.bincount(owners.ravel(), minlength=SERVERS))
        of_large.append(np.bincount(owners[:, large].ravel(), minlength=SERVERS))
    lost = outcome.updates_lost, outcome.large_lost, outcome.batches_lost
    for found, counts in zip(lost, map(np.array, (of_server, of_large, once)), strict=True):
        missed = counts[:10, 0].sum() + counts[20:30, 1:3].sum() + counts[30:35, 2].sum()
        assert found == pytest.approx(missed / counts.sum())


def test_losses_that_come_together_all_count(emulate):
    _, outcome = emulate(SavingStrategy("vanilla", math.inf), at(30.2, 0), at(30.3, 1), at(59.8, 2), at(60, 3))
    assert outcome.pls == pytest.approx((30 + 30 + 60 + 60) / 60 / SERVERS)


def test_saves_that_come_together_all_count(emulate):
    _, outcome = emulate(SavingStrategy("full", GIVEN.total_seconds / 120, full=True), at(30.2, 0), at(30.3, 1))
    assert outcome.saving == pytest.approx(120 * 324 / (56 * HOUR))
    assert outcome.pls == outcome.lost == outcome.updates_lost == 0


@pytest.mark.parametrize("tracker", ["mfu", "scar"])
def test_priority_with_all_rows_is_vanilla(emulate, tracker):
    losses = at(10, 0), at(30, 1, 2), at(35, 2)
    vanilla, expected = emulate(SavingStrategy("vanilla", GIVEN.total_seconds / 3), *losses)
    mine, outcome = emulate(SavingStrategy(tracker, GIVEN.total_seconds / 3, tracker, fraction=1.0), *losses)
    for one, other in zip(state_of(vanilla), state_of(mine), strict=True):
        np.testing.assert_equal(one, other)
    assert (outcome.pls, outcome.updates_lost) == (expected.pls, expected.updates_lost)
    assert outcome.coverage == 1


@pytest.mark.parametrize("tracker", ["mfu", "scar", "ssu"])
def test_priority_loses_fewer_updates(emulate, tracker):
    """The tables are looked up by a power law; a fiftieth of the rows, fifty times as often."""
    losses = [at(30, k) for k in range(SERVERS)]
    _, vanilla = emulate(SavingStrategy("vanilla", GIVEN.total_seconds), *losses)
    _, outcome = emulate(SavingStrategy(tracker, GIVEN.total_seconds, tracker, fraction=0.02), *losses)
    assert 0 < outcome.updates_lost < 0.8 * vanilla.updates_lost
    assert 0 < outcome.coverage < 1


@pytest.mark.parametrize("tracker", ["mfu", "ssu"])
def test_trackers_are_lost_with_their_server(tmp_path, config, tracker):
    """A save right after the loss finds no access to cover; that of a server that was not lost does not cover all."""
    emulation = RecoveryEmulation(config, GIVEN, SavingStrategy(tracker, math.inf, tracker, fraction=0.02), tmp_path)
    for batch in itertools.islice(emulation._batches.from_number(0), 5):
        emulation.training.step(batch, 0)
    emulation.servers[0].lose(500)
    for server in emulation.servers:
        server.save(500)
    coverage = [server.tally.coverage for server in emulation.servers]
    assert coverage[0] == [1.0]
    assert all(share < 1 for (share,) in coverage[1:])


def test_where_access_is_even_ssu_loses_more_than_saving_all_rows(tmp_path, monkeypatch):
    """As the table says: a list that overflows is a random eighth of the rows, and a row may wait for long. The run has
    seven T_save, in each of which a row is looked up 40 times.
    """
    monkeypatch.setattr(datasets, "draw", even)
    data = make_dataset(tmp_path / "data", rows=5_600, cardinalities=(20,) * 26)
    (tmp_path / "run.toml").write_text(f'[data]\nfolder = "{data}"\nbatch_size = 20\npasses = 1')
    config = load(tmp_path / "run.toml", (*SMALL_MODEL, "topology.embedding_ps=2"))
    given, losses = inputs_of(2, {}), [Loss(GIVEN.total_seconds * at / 280, (k,)) for k, at in enumerate((150, 262))]
    tables = []
    for name, tracker in (("CPR-vanilla", ""), ("CPR-SSU", "ssu")):
        strategy = SavingStrategy(name, given.total_seconds / 7, tracker, 0.125 if tracker else 1.0)
        outcome = RecoveryEmulation(config, given, strategy, tmp_path / name).run(losses)
        tables.append(recovery.row(strategy, given, 1, [outcome, replace(outcome, strategy=NO_LOSS)]))
    text = table.against("CPR-vanilla", tables)
    share = tables[1]["updates_lost"].mean / tables[0]["updates_lost"].mean
    assert 1.2 < share < 1.875  # of rows that are picked at random: an interval and 7.5 of them, not 4
    assert f"CPR-SSU: {share:.2f} of all, {share:.2f} of the large tables', WORSE than saving all rows" in text
    tables[1]["updates_lost"] = tables[0]["updates_lost"]  # as if lookups were of small tables
    assert ", WORSE there than saving all rows" in table.against("CPR-vanilla", tables)
    tables[1]["large_lost"] = tables[0]["large_lost"]
    assert "WORSE" not in table.against("CPR-vanilla", tables)
    assert table.against("CPR-vanilla", tables[:1]) == table.against("naive partial", tables) == ""


def even(generator, effects, rows, dense_features=13):
    """Ids of which all are alike, as ``datasets.draw`` makes those with a long tail."""
    ids = np.stack([generator.integers(0, len(effect), rows) for effect in effects], axis=1).astype(np.int32)
    dense = np.zeros((rows, dense_features), np.float32)
    return ids, dense, generator.integers(0, 2, rows).astype(np.uint8)


def test_losses_come_as_stated():
    given = inputs_of(18, {"mtbf_hours": 1.0, "mtbf_seconds": 2.0})
    runs = [schedule(given, 3, seed) for seed in range(200)]
    assert runs[7] == schedule(given, 3, 7)
    counts = [len(losses) for losses in runs]
    assert np.mean(counts) == pytest.approx(28, rel=0.03)
    assert np.var(counts) == pytest.approx(28, rel=0.35)  # Poisson
    for losses in runs:
        assert all(len(set(loss.servers)) == 3 for loss in losses)
        assert [loss.seconds for loss in losses] == sorted(loss.seconds for loss in losses)


@pytest.mark.parametrize("shape", [0.5, 1.0, 4.0])
def test_times_between_losses_have_the_stated_shape(shape):
    """Mean and variance of a gamma distribution; the variance is T_fail^2 / shape."""
    given = inputs_of(18, {"total_seconds": 20_000.0, "mtbf_seconds": 2.0})
    times = np.diff([0.0, *(loss.seconds for loss in schedule(given, 1, 5, shape))])
    assert times.mean() == pytest.approx(2 * HOUR, rel=0.06)
    assert times.var() == pytest.approx((2 * HOUR) ** 2 / shape, rel=0.12)
    assert schedule(given, 1, 5, 1.0) == schedule(given, 1, 5)


def test_the_example_costs_what_the_paper_says(tmp_path, small_data):
    """CPR's abstract: 8.2 to 8.5 % with full recovery, 0.53 to 0.68 % with MFU and SSU; naive is about half of full."""
    path = tmp_path / "run.toml"
    path.write_text(f'[data]\nfolder = "{small_data}"\nbatch_size = 20\npasses = 1')
    config, given = load(path, (*SMALL_MODEL, "topology.embedding_ps=18")), inputs_of(18, {})
    found = {strategy.name: strategy for strategy in strategies(given)}
    losses = [Loss(k * found["full"].interval, (3,)) for k in (3.5, 15.5)]  # half an interval to train again
    cost = {
        name: RecoveryEmulation(config, given, found[name], tmp_path / name).run(losses).overhead
        for name in ("full", "naive partial", "CPR-vanilla", "CPR-MFU", "CPR-SSU")
    }
    assert cost["full"] == pytest.approx(0.083, abs=0.0025)
    assert cost["naive partial"] == pytest.approx(cost["full"] / 2, abs=0.002)
    assert cost["CPR-vanilla"] == pytest.approx((324 + 2 * (180 + 144)) / given.total_seconds)
    assert max(cost["CPR-MFU"], cost["CPR-SSU"]) <= 0.007


@pytest.mark.parametrize(("tracker", "fraction"), [("", 1.0), ("mfu", 0.125), ("scar", 0.125), ("ssu", 0.125)])
def test_pls_is_as_expected_over_many_losses(tmp_path, config, monkeypatch, tracker, fraction):
    """Derived in the policy: 1 - (1 - exp(-x)) / x with x = T_save / (N T_fail), because a PS that is lost twice loses
    samples once. With priorities it is that of T_save, too.
    """
    given, found = inputs_of(SERVERS, {"mtbf_seconds": 4.0}), []
    monkeypatch.setattr(Training, "step", lambda *_: None)
    for seed in range(30):
        emulation = RecoveryEmulation(
            config,
            given,
            SavingStrategy("any", given.total_seconds / 3, tracker, fraction),
            tmp_path / str(seed),
        )
        monkeypatch.setattr(
            emulation, "_outcome", lambda *_, e=emulation: ledger.pls([s.account for s in e.servers], 6_000)
        )
        found.append(emulation.run(schedule(given, 1, seed)))
    x = given.total_seconds / 3 / (SERVERS * given.mtbf_seconds)
    assert np.mean(found) == pytest.approx(1 - (1 - math.exp(-x)) / x, rel=0.1)


def test_a_line_through_the_runs():
    exact = table.slope([(1, 0.0, 9.0), (1, 0.1, 0.02), (2, 0.3, 0.06)])
    assert (exact.mean, exact.error) == (pytest.approx(0.2), pytest.approx(0.0, abs=1e-9))
    spread = table.slope([(1, 1.0, 1.0), (2, 1.0, 3.0)])
    assert (spread.mean, spread.error) == (pytest.approx(2.0), pytest.approx(1.0))  # the mean's standard error
    assert math.isnan(table.slope([]).mean)
    assert math.isnan(table.slope([(1, 0.5, 1.0), (1, 0.6, 1.1)]).error)


def test_the_lines_error_counts_noise_that_runs_of_a_seed_share():
    """All are compared with one run without losses. Without any effect half of the slopes were beyond 2 errors of 0."""
    generator, found = np.random.default_rng(0), []
    for _ in range(300):
        shared = generator.normal(size=10)
        of_seeds = [seed for seed in range(10) for _ in range(6)]
        points = [(seed, generator.uniform(0.5, 1), generator.normal() - shared[seed]) for seed in of_seeds]
        found.append(table.slope(points))
    assert np.std([each.mean for each in found]) == pytest.approx(np.mean([each.error for each in found]), rel=0.15)


def test_the_command_prints_a_table_and_its_numbers(tmp_path, small_data, monkeypatch, capsys):
    monkeypatch.setattr(data, "synthetic", lambda folder, rows: small_data)
    words = ["--short", "--seeds", "1,2", "--folder", str(tmp_path), "--mtbf-hours", "20", "--only", "[fv][ua]*"]
    words += ["--gamma-shape", "0.7"]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["recovery", *words, "topology.embedding_ps=4"], parser())
    said = capsys.readouterr().out
    assert "T_total = 56 h with 4 embedding PSs: one of them loses memory every T_fail = 20 h" in said
    assert ", at gamma-distributed intervals of shape 0.7." in said
    report = json.loads((tmp_path / "recovery.json").read_text())
    assert [row["strategy"] for row in report["rows"]] == ["full", "CPR-vanilla"]
    ne = {(outcome["strategy"], outcome["seed"]): outcome["ne"] for outcome in report["outcomes"]}
    changes = [ne["CPR-vanilla", seed] / ne[NO_LOSS, seed] - 1 for seed in (1, 2)]
    assert [point["relative_ne"] for point in report["points"]] == changes
    assert report["rows"][1]["relative_ne"]["mean"] == pytest.approx(np.mean(changes))
    assert f"updates lost: {1000 * report['slopes']['updates_lost']['mean'] / 100:+.3f}" in said
    assert report["rows"][0]["relative_ne"] == {"mean": 0.0, "error": 0.0}
    assert len(report["outcomes"]) == 6
    assert (tmp_path / "recovery.txt").read_text() == said
    left = {"base.toml", "recovery.json", "recovery.txt", "trials.jsonl"}
    assert {path.name for path in tmp_path.iterdir()} == left


def test_a_killed_command_resumes_with_the_runs_that_are_not_finished(tmp_path, small_data, monkeypatch, capsys):
    """A torn last line is run again; with other losses only the run without losses is taken."""
    words = ["recovery", "--short", "--seeds", "1", "--only", "vanilla", "--folder", str(tmp_path)]
    words += [f"data.folder={small_data}", "topology.embedding_ps=4"]
    trials, made, begin = tmp_path / "trials.jsonl", [], RecoveryEmulation.run

    def counted(emulation, losses):
        made.append(emulation._strategy.name)
        return begin(emulation, losses)

    def said(*more):
        made.clear()
        with pytest.raises(SystemExit, match=r"^0$"):
            main([*words, *more], parser())
        return capsys.readouterr().out

    monkeypatch.setattr(RecoveryEmulation, "run", counted)
    whole = said("--mtbf-hours", "20")
    assert made == [NO_LOSS, "CPR-vanilla"]
    assert said("--mtbf-hours", "20") == whole
    assert made == []
    trials.write_text(trials.read_text()[:-5])
    assert said("--mtbf-hours", "20") == whole
    assert made == ["CPR-vanilla"]
    said("--mtbf-hours", "5", "topology.embedding_ps=5")
    assert made == ["CPR-vanilla"]
    trials.write_text('{"key": 1}\n')
    with pytest.raises(SystemExit, match=r"^2$"):
        main(words, parser())
    assert "trials.jsonl, line 1: not the record of a run; remove that line" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"at_once": 5}, "--at-once is 5, topology.embedding_ps 4: a loss takes 1 to 4 of them"),
        ({"at_once": 0}, "--at-once is 0"),
        ({"gamma_shape": 0.0}, "--gamma-shape must be"),
        ({"seeds": (1, 2, 1)}, "--seeds must list different seeds, got (1, 2, 1)"),
        ({"only": "sacr"}, "--only 'sacr' lets no strategy through; there are: full, naive partial, CPR-vanilla"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, small_data, words, said):
    options = {"folder": tmp_path, "seeds": (1,), "short": True, **words}
    overrides = (f"data.folder={small_data}", "topology.embedding_ps=4")
    with pytest.raises(SettingsError, match=f"^{re.escape(said)}"):
        recovery.measure(EmulationOptions(**options), None, overrides)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("evaluate.final=none", r"evaluate\.final = 'none' names no labelled split"),
        ("topology.embedding_ps=0", r"topology\.embedding_ps is 0: set how many"),
    ],
)
def test_a_run_file_that_cannot_be_emulated_is_refused(tmp_path, small_data, override, said):
    options = EmulationOptions(folder=tmp_path, seeds=(1,), short=True)
    with pytest.raises(SettingsError, match=said):
        recovery.measure(options, None, (f"data.folder={small_data}", override))


def test_a_change_shows_its_error_where_there_is_one():
    assert table._change(recovery.Estimate(0.00123, math.nan), 100, 3, " %") == "+0.123 %"
    assert table._change(recovery.Estimate(-0.00123, 0.0004), 100, 3, " %") == "-0.123 ± 0.040 %"
