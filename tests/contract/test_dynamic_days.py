"""Rows by key from day to day: a run that continues another, exports, and deltas with the keys that are gone. What is
expected comes from runs with ids, from one run over all days, and from plain dictionaries.
"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import FEW, make_dataset, make_keyed, only
from runs import train_over_threads, write_run_file
from safetensors.numpy import load_file, save_file
from test_dynamic_tables import KEYED, tables

from ssmpi.data.schema import read_manifest
from ssmpi.embedding.dynamic_options import KeyOptions
from ssmpi.embedding.table import Arena
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.runtime.settings import dump
from ssmpi.state import continued, resume
from ssmpi.state.checkpoint import model_files, store
from ssmpi.state.checkpoint.data_origin import DataOrigin
from ssmpi.state.checkpoint.store import Store
from ssmpi.state.request import RunRequest
from ssmpi.tools import delta
from ssmpi.tools.export import export
from ssmpi.tools.score import open_run

SIZES = (400, 400, 20, 9, 50)
DAY = 300  # rows
ONE = ("data.batch_size=50", f"data.block_rows={DAY}", "data.shuffle=false", "embedding.prefetch=false")
DYNAMIC = ("embedding.dynamic.keys=400",)


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
    few = (*ONE, "embedding.dynamic.keys=20", f"run.continue_from={first.folder}")
    config = write_run_file(tmp_path / "b", data[2][1], *few)
    with pytest.raises(SettingsError, match=r"keys = 20: .*run has \d+ keys of user: set it to that or more"):
        continued.parent_of(config, read_manifest(data[2][1]))


# Exports and deltas


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data):
    """Runs day by day in which keys expire, and their exports."""
    folder = tmp_path_factory.mktemp("runs")
    expiring = ("embedding.dynamic.expire_after_examples=1", "model.name=deepfm", "model.deepfm.deep=[8]")
    found = day_by_day(folder, data[2], *expiring, servers=(2, 0, 3))
    for day, run in enumerate(found):
        export(run.folder, "safetensors", folder / f"whole{day}")
    return found, folder


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert (found[name].dtype, found[name].shape) == (values.dtype, values.shape), name
        assert found[name].tobytes() == values.tobytes(), name


def test_an_export_has_rows_in_the_order_of_their_keys(runs, tmp_path):
    """From any number of PSs, vectors and first-order weights, in files of either kind."""
    for day, run in enumerate(runs[0]):
        exported, (keyed, plain) = load_file(runs[1] / f"whole{day}"), tables(run)
        for table, rows in keyed.items():
            keys = sorted(key for key in rows if isinstance(key, int))
            assert exported[f"keys.{table}"].tolist() == keys
            expected = np.stack([rows[key] for key in ("id 0", "id 1", *keys)])
            np.testing.assert_array_equal(exported[f"emb_l.{table}.weight"], expected[:, :8])
            np.testing.assert_array_equal(exported[f"first_l.{table}.weight"], expected[:, 8:])
        for table, rows in plain.items():
            np.testing.assert_array_equal(exported[f"emb_l.{table}.weight"], rows[:, :8])
        export(run.folder, "torch", tmp_path / "torch")
        by_torch = torch.load(tmp_path / "torch", weights_only=True)
        assert_equal({name: values.numpy() for name, values in by_torch.items()}, exported)


def test_rows_by_key_are_exported_as_rows_by_id(tmp_path, data):
    for kind, rows, settings in (("ids", data[0], ()), ("keys", data[1], DYNAMIC)):
        run = train_over_threads(tmp_path / kind, rows, *ONE, *settings, "topology.embedding_ps=2")
        export(run.folder, "safetensors", tmp_path / f"{kind}.safetensors")
    by_id, by_key = (load_file(tmp_path / f"{kind}.safetensors") for kind in ("ids", "keys"))
    for table in range(len(KEYED)):
        name, keys = f"emb_l.{table}.weight", by_key.pop(f"keys.{table}")
        assert len(keys) > 50
        np.testing.assert_array_equal(by_key.pop(name)[2:], by_id.pop(name)[keys])
    assert_equal(by_key, by_id)


def test_base_and_deltas_are_the_whole_to_the_bit(runs, tmp_path, capsys):
    (found, folder), wholes = runs, [load_file(runs[1] / f"whole{day}") for day in range(3)]
    for day in (1, 2):
        delta.export_since(found[day].folder, str(found[day - 1].folder), tmp_path / f"delta{day}")
        gone = sum(len(np.setdiff1d(wholes[day - 1][f"keys.{t}"], wholes[day][f"keys.{t}"])) for t in (0, 1))
        assert gone > 10
        assert f", {gone:,} keys are gone, " in capsys.readouterr().out
    delta.apply(folder / "whole0", [tmp_path / "delta1", tmp_path / "delta2"], tmp_path / "found")
    assert_equal(load_file(tmp_path / "found"), wholes[2])
    delta.export_since(found[2].folder, str(found[0].folder), tmp_path / "delta")  # two days at once
    delta.apply(folder / "whole0", [tmp_path / "delta"], tmp_path / "found")
    assert_equal(load_file(tmp_path / "found"), wholes[2])
    delta.export_since(found[0].folder, str(found[2].folder), tmp_path / "back")
    delta.apply(folder / "whole2", [tmp_path / "back"], tmp_path / "found")
    assert_equal(load_file(tmp_path / "found"), wholes[0])


def test_a_delta_has_only_what_was_looked_up(runs, tmp_path):
    """And that is named with its key: what else would a row of the day change?"""
    found, folder = runs
    delta.export_since(found[1].folder, str(found[0].folder), tmp_path / "delta")
    one, whole = load_file(tmp_path / "delta"), load_file(folder / "whole1")
    for table in (0, 1):
        changed, gone = (one[f"keys.{table}.{what}"] for what in ("changed", "gone"))
        assert (np.diff(changed) > 0).all()
        assert (np.diff(gone) > 0).all()
        assert set(changed.tolist()) <= set(whole[f"keys.{table}"].tolist())
        assert not set(gone.tolist()) & set(whole[f"keys.{table}"].tolist())
    delta.export_since(found[1].folder, str(found[1].folder), tmp_path / "none")
    same = load_file(tmp_path / "none")
    assert not any(len(values) for name, values in same.items() if name.endswith((".changed", ".gone", ".ids")))


def test_keys_and_ids_have_no_difference(runs, data, tmp_path):
    settings = ("model.name=deepfm", "model.deepfm.deep=[8]")
    by_id = train_over_threads(tmp_path / "ids", data[0], *ONE, *settings)
    for now, before in ((by_id, runs[0][0]), (runs[0][0], by_id)):
        with pytest.raises(DataError, match=r"rows by key where .* export the whole"):
            delta.export_since(now.folder, str(before.folder), Path(tmp_path / "delta"))
    assert not (tmp_path / "delta").exists()


def test_a_delta_that_lacks_keys_is_named(runs, tmp_path):
    (found, folder), path = runs, tmp_path / "delta"
    delta.export_since(found[1].folder, str(found[0].folder), path)
    whole, about = load_file(path), delta.TensorFile.read(path).about
    for name in ("keys.0.gone", "keys.1.changed", "emb_l.0.weight.values"):
        save_file({each: values for each, values in whole.items() if each != name}, path, about)
        with pytest.raises(DataError, match=f"delta: damaged: it has no '{name}'"):
            delta.apply(folder / "whole0", [path], tmp_path / "found")
    assert not (tmp_path / "found").exists()


def prepared(folder, data, *overrides, run=None):
    """The settings with which a run begins, or resumes in one process."""
    config = write_run_file(folder, data, *ONE, *DYNAMIC, *overrides)
    (folder / "given.toml").write_text(dump(config))
    request = RunRequest(folder / "given.toml", (), run=run)
    with ExitStack() as held:
        return resume.prepare(request, config.topology.size, held).config


@pytest.mark.parametrize("earlier", [False, True], ids=["this version", "an earlier version"])
def test_what_full_tables_of_several_servers_saved_fits_one_process(tmp_path, data, monkeypatch, earlier):
    """Servers of earlier versions had more keys together than the limit."""
    full = ("embedding.dynamic.keys=20", "checkpoint.every_examples=150")
    if earlier:
        monkeypatch.setattr(KeyOptions, "share", lambda options, first, stride: replace(options, keys=1000))
    three = train_over_threads(tmp_path / "a", data[2][0], *ONE, *DYNAMIC, *full, "topology.embedding_ps=3")
    monkeypatch.undo()
    model = model_files.find(three.folder)
    one = (*full, "topology.embedding_ps=0", f"run.folder={three.folder}")
    configs = [open_run(three.folder, 1).config]
    configs.append(prepared(tmp_path / "b", data[2][1], *full, f"run.continue_from={three.folder}"))
    (three.folder / "result.json").unlink()
    configs.append(prepared(tmp_path / "c", data[2][0], *one, run=three.folder))
    for config, saved in zip(configs, (model, model, Store(three.folder).committed()[-1]), strict=True):
        arena = Arena(config.rows, config.placement(DataOrigin.of_model(saved, "")), 0, seed=1)
        model_files.load_tables(arena, saved)
        counts = [each["keys"] for each in store.read_manifest(saved).state["keys"].values()]
        assert all((count > 20) if earlier else (10 < count <= 20) for count in counts)
        arena.keyed.sweep(1)  # which frees none of them
        assert [keyed.counts.keys for keyed in arena.keyed.values()] == counts
