"""The table's arithmetic against numpy and scipy by hand, and its text."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmpi.tools.report import columns
from ssmpi.tools.report.groups import Estimate, Group, by_settings, estimate, relative, row
from ssmpi.tools.report.record import Record

VALUES = st.lists(st.floats(0.1, 10.0), min_size=2, max_size=8)


def record(ne, seed=1, folder="run", status="complete", **settings):
    """A finished run of one metric."""
    result = {"status": status, "eps": 1000.0 * ne, "evaluations": {"test": {"last": {"ne": ne, "auc": 1 - ne / 2}}}}
    basics = {"data.batch_size": 128, "topology.threads": 2, "topology.trainers": 4, "run.seed": seed}
    return Record(folder=Path(folder), settings={**basics, **settings}, result=result)


def group(values, seeds=None):
    return Group({"run": "x"}, [record(v, s) for v, s in zip(values, seeds or range(len(values)), strict=True)])


def test_examples_in_flight_are_those_of_trainers_that_read():
    groups = {"topology.group": 2, "hierarchy.homes": "all"}
    assert [record(0.5, **more).elp for more in ({}, groups, {**groups, "hierarchy.homes": "first"})] == [
        128 * 2 * 4, 128 * 2 * 4, 128 * 2 * 2,
    ]  # fmt: skip


@given(VALUES)
def test_mean_and_standard_error_are_those_of_scipy(stats, values):
    found = estimate(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.error == pytest.approx(stats.sem(values), abs=1e-12)


def test_one_value_has_no_error_and_none_has_no_mean():
    assert estimate([0.5]).mean == 0.5
    assert math.isnan(estimate([0.5]).error)
    assert math.isnan(estimate([]).mean)
    assert estimate([0.5, math.nan]).mean == 0.5  # a run without that metric


@given(VALUES, st.integers(0, 3))
def test_runs_of_the_same_seeds_are_compared_in_pairs(stats, values, extra):
    generator = np.random.default_rng(len(values))
    others = generator.uniform(0.5, 1.5, len(values) + extra)
    found = relative(group(values), group(others), "ne")
    ratios = np.array(values) / others[: len(values)] - 1
    assert found.mean == pytest.approx(ratios.mean())
    assert found.error == pytest.approx(stats.sem(ratios), abs=1e-12)


def test_what_seeds_have_in_common_is_not_counted_as_error():
    noise = np.array([0.8, 0.9, 0.7])
    found = relative(group(1.01 * noise), group(noise), "ne")
    assert found.mean == pytest.approx(0.01)
    assert found.error == pytest.approx(0, abs=1e-12)


def test_a_seed_that_the_reference_has_twice_is_no_pair():
    found = relative(group([0.9], [1]), group([0.8, 1.2], [1, 1]), "ne")
    assert found.mean == pytest.approx(0.9 / 1.0 - 1)


def test_other_seeds_are_compared_as_independent():
    """Against the spread of the ratio of means over many repetitions of the experiment."""
    generator = np.random.default_rng(5)
    mine, theirs = generator.normal(0.8, 0.01, (40_000, 3)), generator.normal(0.7, 0.02, (40_000, 4))
    ratios = mine.mean(axis=1) / theirs.mean(axis=1) - 1
    exact = Estimate(0.8, 0.01 / math.sqrt(3)).relative_to(Estimate(0.7, 0.02 / 2))
    assert exact.error == pytest.approx(ratios.std(), rel=0.02)
    assert exact.mean == pytest.approx(ratios.mean(), rel=0.01)
    found = relative(group(mine[0], [1, 2, 3]), group(theirs[0], [3, 4, 5, 6]), "ne")
    by_hand = estimate(mine[0]).relative_to(estimate(theirs[0]))
    assert found == by_hand


def test_runs_are_grouped_by_what_changes_results():
    runs = [record(0.8, seed=s, folder=f"{a}{s}", **{"sync.algorithm": a}) for a in ("ma", "bmuf") for s in (1, 2)]
    found = by_settings([*runs, record(0.7, folder="c", **{"sync.algorithm": "ma", "run.log_seconds": 2.0})])
    assert [(g.name, len(g.records)) for g in found] == [("ma1, ma2, c", 3), ("bmuf1, bmuf2", 2)]


def test_runs_without_settings_stay_apart():
    runs = [Record(folder=Path("a") / name / "run") for name in ("x", "y")]
    assert [g.name for g in by_settings(runs)] == ["x/run", "y/run"]


def test_the_table_reads_as_it_did(golden):
    reference = Group({"case": "none", "topology.trainers": 1}, [record(0.8, 1), record(0.81, 2), record(0.805, 3)])
    other = Group({"case": "S-MA", "topology.trainers": 4}, [record(0.802, 1), record(0.812, 2), record(0.809, 3)])
    alone = Group({"case": "FR-MA", "topology.trainers": 4}, [record(0.9, 1), record(0.9, 2, status="stopped")])
    empty = Group({"case": "S-BMUF", "topology.trainers": 16}, [Record(folder=Path("nothing"))])
    rows = [row(g, reference) for g in (reference, other, alone, empty)]
    text = columns.markdown(rows) + "\n"
    assert text == golden("table.md", text)
    assert len({len(line) for line in text.splitlines()}) == 1  # aligned


def test_without_a_reference_nothing_is_compared():
    found = row(group([0.8, 0.9]), None)
    assert found.relative_ne is None
    assert "reference" not in columns.cells(found, columns.shown([found]))


def test_the_best_and_the_last_validation_are_columns_where_there_are_any():
    found = Record(folder=Path("a"), result={"evaluations": {"validation": {"best": {"ne": 0.8}, "last": {"ne": 1.0}}}})
    rows = [row(Group({"run": "a"}, [found]), None), row(group([0.8]), None)]
    assert columns.headings(rows)[-2:] == ["validation NE, best", "validation NE, last"]
    assert [columns.cells(r, columns.shown(rows))[-2:] for r in rows] == [["0.80000", "1.00000"], ["-", "-"]]


@pytest.mark.parametrize(("kept", "ne"), [("best", 0.7), ("last", 0.9), (None, 0.9)])
def test_a_run_is_judged_by_the_model_that_it_left(kept, ne):
    test = {"best": {"ne": 0.7}, "last": {"ne": 0.9}}
    found = Record(folder=Path("a"), result={"kept": kept, "evaluations": {"test": test}})
    assert found.number("ne") == ne
