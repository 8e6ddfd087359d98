"""Rows by key from day to day: a run that continues another is one run over all days.
"""

import numpy as np
import pytest
from datasets import FEW, make_dataset, make_keyed, only
from runs import train_over_threads, write_run_file
from test_dynamic_tables import KEYED, tables

from ssmpi.core.errors import SettingsError
from ssmpi.data.schema import read_manifest
from ssmpi.run import continued

SIZES = (400, 400, 20, 9, 50)
DAY = 300  # rows
ONE = ("data.batch_size=50", f"data.block_rows={DAY}", "data.shuffle=false", "embedding.prefetch=false")
DYNAMIC = ("embedding.table=dynamic", "embedding.dynamic.keys=400")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three days with ids, with keys, and the days with keys alone."""
    folder = tmp_path_factory.mktemp("days")
    ids = make_dataset(folder / "ids", 3 * DAY, shard=DAY, cardinalities=SIZES, features=FEW)
    keys = make_keyed(folder / "keys", ids, KEYED)
    return ids, keys, [only(folder / f"day{day}", keys, slice(day, day + 1)) for day in range(3)]


def day_by_day(folder, days, *settings, servers=(1, 1, 1)):
    """A run a day, each continuing the one before."""
    runs = []
    for day, (rows, count) in enumerate(zip(days, servers, strict=True)):
        parent = runs[-1].folder if runs else None
        before = (f"run.continue_from={parent}",) if parent else ()
        ranks = f"topology.embedding_ps={count}"
        runs.append(
            train_over_threads(folder / f"run{day}", rows, *ONE, *DYNAMIC, *settings, ranks, *before, parent=parent)
        )
    return runs


def whole_of(folder, data, *settings, servers=1):
    """One run over all days."""
    ranks = f"topology.embedding_ps={servers}"
    return train_over_threads(folder / "whole", data[1], *ONE, *DYNAMIC, "evaluate.per_pass=3", *settings, ranks)


CASES = {
    "all are admitted": ((), (1, 1, 1), 1),
    "other numbers of PSs": ((), (2, 0, 3), 1),
    "no PS": ((), (0, 0, 0), 0),
    "sightings go on": (("embedding.dynamic.admit_after=3",), (2, 3, 1), 2),
    "dates go on": ((f"embedding.dynamic.expire_after_examples={DAY}",), (2, 2, 1), 2),
    "a full table": (("embedding.dynamic.keys=40",), (1, 1, 1), 1),
    "AdamW": (("embedding.optimizer=adamw", "embedding.rate=0.01"), (1, 2, 1), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_day_after_day_gives_the_bits_of_one_run(tmp_path, data, case):
    settings, servers, of_whole = CASES[case]
    whole = whole_of(tmp_path, data, *settings, servers=of_whole)
    days = day_by_day(tmp_path, data[2], *settings, servers=servers)
    np.testing.assert_array_equal(np.concatenate([run.losses() for run in days]), whole.losses())
    for name, values in whole.dense().items():
        np.testing.assert_array_equal(days[-1].dense()[name], values, err_msg=name)
    for what in ("weights", "state"):
        (keyed, plain), (found, found_plain) = tables(whole, what), tables(days[-1], what)
        assert {table: rows.keys() for table, rows in found.items()} == {t: rows.keys() for t, rows in keyed.items()}
        for table, rows in keyed.items():
            for key, values in rows.items():
                np.testing.assert_array_equal(found[table][key], values, err_msg=f"{what} of {key}")
        for table, values in plain.items():
            np.testing.assert_array_equal(found_plain[table], values)
    counts, parts = whole.result["keys"], [run.result["keys"] for run in days]
    for name in KEYED:
        for what in ("admitted", "expired", "evicted", "refused"):
            assert sum(each[name][what] for each in parts) == counts[name][what], (name, what)


def test_the_cases_are_what_they_say(tmp_path, data):
    expiring = whole_of(tmp_path / "dates", data, *CASES["dates go on"][0]).result["keys"]
    full = whole_of(tmp_path / "full", data, *CASES["a full table"][0]).result["keys"]
    assert all(expiring[name]["expired"] > 5 for name in KEYED)
    assert all(full[name]["evicted"] > 5 and full[name]["refused"] > 5 for name in KEYED)


def test_fresh_optimizers_leave_the_state_of_keys_behind(tmp_path, data):
    still = ("run.fresh_optimizer=true", "embedding.rate=0", "dense.rate=0")
    first = train_over_threads(tmp_path / "a", data[2][0], *ONE, *DYNAMIC)
    parent = f"run.continue_from={first.folder}"
    second = train_over_threads(tmp_path / "b", data[2][1], *ONE, *DYNAMIC, parent, *still, parent=first.folder)
    before, after = tables(first)[0], tables(second)[0]
    old, state = tables(first, "state")[0], tables(second, "state")[0]
    initial = np.float32(3e-4)
    for table in (0, 1):
        unseen = [key for key in before[table] if isinstance(key, int) and state[table][key] == initial]
        assert len(unseen) > 10
        assert all(old[table][key] > initial for key in unseen)
        for key, values in before[table].items():
            np.testing.assert_array_equal(after[table][key], values)


def test_a_limit_below_the_keys_that_are_there_is_refused(tmp_path, data):
    first = train_over_threads(tmp_path / "a", data[2][0], *ONE, *DYNAMIC)
    few = (*ONE, "embedding.table=dynamic", "embedding.dynamic.keys=20", f"run.continue_from={first.folder}")
    config = write_run_file(tmp_path / "b", data[2][1], *few)
    with pytest.raises(SettingsError, match=r"keys = 20: .*run has \d+ keys of user: set it to that or more"):
        continued.parent_of(config, read_manifest(data[2][1]))
