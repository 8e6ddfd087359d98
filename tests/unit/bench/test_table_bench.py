"""Dynamic tables beside static ones: the same rows are compared, and figures are those of a calculation by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ssmpi.bench import compression, tables
from ssmpi.bench.options import CompressionOptions, TablesOptions
from ssmpi.bench.tables import ARRIVAL, DYNAMIC, DYNAMIC_SENT, RANDOM, STATIC, STATIC_SENT
from ssmpi.runtime.errors import SettingsError, UserError

SMALL = TablesOptions(features=3, rows=500, dim=4, batch=(16, 50), turns=3)


def test_all_contenders_compute_the_same_rows_and_are_printed(tmp_path, capsys):
    """After so many turns they are compared to the bit, else there is an error."""
    out = tmp_path / "tables.json"
    out.write_text(json.dumps([{"batch": 9}], indent=1))  # of an earlier one, and replaced
    costs = tables.measure(replace(SMALL, output=out))
    assert [(c.batch, c.contender) for c in costs] == [
        (b, name) for b in (16, 50) for name in (STATIC, ARRIVAL, RANDOM, DYNAMIC, STATIC_SENT, DYNAMIC_SENT)
    ]
    assert all(c.pull_ns > 0 < c.push_ns and c.ratio > 0 for c in costs)
    assert [c.ratio for c in costs if c.contender in (STATIC, STATIC_SENT)] == [1.0] * 4
    assert json.loads(out.read_text())[11]["contender"] == DYNAMIC_SENT
    printed = capsys.readouterr().out
    assert "3 features of 500 rows x 4 floats, skew 1.05; medians of 3 turns" in printed
    assert len(printed.splitlines()) == 2 + 12


def test_other_rows_are_not_compared(monkeypatch):
    """If a contender read other rows, it would say so."""
    monkeypatch.setattr(tables, "arrival", lambda generator, ids, rows: np.zeros((rows, ids.shape[1]), np.int32))
    with pytest.raises(AssertionError, match="different rows"):
        tables.measure(SMALL)


def test_figures_are_nanoseconds_an_id_and_medians_of_ratios():
    static = np.array([[1e-8, 3e-8], [2e-8, 2e-8], [3e-8, 1e-8]])
    found = tables.cost(7, "x", 2 * static, static)
    assert (found.pull_ns, found.push_ns, found.pull_ratio, found.ratio) == pytest.approx((40, 40, 0.5, 0.5))


def test_places_by_arrival_are_in_the_order_of_the_data():
    ids = np.array([[4, 0], [2, 0], [4, 1]], np.int32)
    places = tables.arrival(np.random.default_rng(1), ids, 5)
    assert (places[4, 0], places[2, 0], places[0, 1], places[1, 1]) == (0, 1, 0, 1)
    assert [sorted(column) for column in places.T.tolist()] == [list(range(5))] * 2


def test_ids_follow_zipfs_law():
    ids = tables.zipf(np.random.default_rng(1), TablesOptions(features=2, rows=1000, skew=1.0), 50_000)
    assert ids.min() == 0
    assert ids.max() < 1000
    assert np.mean(ids == 0) == pytest.approx(np.log(2) / np.log(1001), abs=0.01)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"rows": 0}, "--rows"), ({"batch": ()}, "--batch"), ({"skew": 0.0}, "--skew"), ({"turns": 0}, "--turns")],
)
def test_wrong_options_are_refused(wrong, message):
    with pytest.raises(SettingsError, match=message):
        TablesOptions(**wrong)


@pytest.mark.parametrize(
    "measure",
    [
        lambda out: compression.measure(CompressionOptions(output=out)),
        lambda out: tables.measure(TablesOptions(output=out)),
    ],
)
def test_results_replace_no_other_file(measure, tmp_path):
    out = tmp_path / "run.toml"
    out.write_text("[data]\n")
    with pytest.raises(UserError, match=r"run\.toml: is there, and not an earlier output of this command"):
        measure(out)
    assert out.read_text() == "[data]\n"
