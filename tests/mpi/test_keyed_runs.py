"""A run by real ranks with keys in place of ids: the same bits, and scored from its files, by ssmpi and by others."""

import json
import re

import numpy as np
import onnxruntime
import pytest
from datasets import FEW, make_dataset, make_keyed
from runs import train_over_ranks, train_over_threads
from safetensors.numpy import load_file

from ssmpi import cli
from ssmpi.data.reader import SplitReader
from ssmpi.embedding.keyed_table import KeyedTable
from ssmpi.state import memory_needs
from ssmpi.tools.export import export

STEPS = ("data.batch_size=50", "embedding.prefetch=false", "data.passes=2")
DYNAMIC = ("embedding.dynamic.keys=400",)


def command(*words):
    """``ssmpi WORDS`` in this process."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    assert not ended.value.code


def test_real_ranks_train_by_key_as_threads_do_by_id_and_it_is_scored(tmp_path, alone, capsys):
    ids = make_dataset(tmp_path / "ids", 2_000, cardinalities=(400, 400, 20, 9, 50), features=FEW)
    keys = make_keyed(tmp_path / "keys", ids, ("user", "item"))
    by_id = train_over_threads(tmp_path / "by-id", ids, *STEPS)
    run = train_over_ranks(tmp_path / "by-key", keys, *STEPS, *DYNAMIC, "topology.embedding_ps=2")
    np.testing.assert_array_equal(run.losses(), by_id.losses())
    for name, values in by_id.dense().items():
        np.testing.assert_array_equal(run.dense()[name], values, err_msg=name)
    command("evaluate", run.folder)
    said = capsys.readouterr().out
    ne = float(re.search(r"NE ([\d.]+)", said)[1])
    assert ne == pytest.approx(run.quality("test")["ne"], abs=6e-6)
    command("inspect", run.folder)
    assert "user: " in capsys.readouterr().out
    command("predict", run.folder, keys, "--output", tmp_path / "scores")
    predicted = np.loadtxt(tmp_path / "scores")
    np.testing.assert_allclose(served(tmp_path, run.folder, keys), predicted, rtol=0, atol=2e-6)
    assert np.ptp(predicted) > 0.1


@pytest.mark.parametrize("servers", [0, 2])
def test_rows_of_keys_on_disk_have_the_same_bits(tmp_path, disk, servers, monkeypatch):
    """With an eighth of each table in memory; at pauses those that are used most move there."""
    ids = make_dataset(tmp_path / "ids", 6_000, cardinalities=(900, 900, 20, 9, 50), features=FEW)
    keys, moved, moves = make_keyed(tmp_path / "keys", ids, ("user", "item")), [], KeyedTable.move_used
    settings = (*STEPS, *DYNAMIC, "evaluate.per_pass=3", "embedding.dim=64", "model.bottom=[32,64]")
    monkeypatch.setattr(
        memory_needs, "shares", lambda parts, keyed, most: [min(most, part.rows // 8) for part in parts]
    )
    monkeypatch.setattr(KeyedTable, "move_used", lambda *given: moved.append(moves(*given)) or moved[-1])
    stored = (f"topology.embedding_ps={servers}", f"embedding.storage={disk}")
    run = train_over_threads(tmp_path / "on-disk", keys, *settings, *stored)
    assert sum(map(len, moved)) > 50
    moved.clear()
    in_memory = train_over_threads(tmp_path / "in-memory", keys, *settings, "topology.embedding_ps=0")
    assert moved == []
    np.testing.assert_array_equal(run.losses(), in_memory.losses())
    found, expected = (exported(tmp_path, each) for each in (run, in_memory))
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    assert list(disk.iterdir()) == []


def exported(folder, run):
    """The tables of a run, by name; rows of keys in the order of these."""
    assert export(run.folder, "safetensors", folder / f"{run.folder.parent.name}.safetensors") == 0
    return load_file(folder / f"{run.folder.parent.name}.safetensors")


def served(folder, run, data):
    """Probabilities of the test split, as somebody computes them who has the two exported files only."""
    assert export(run, "onnx", folder / "served.onnx") == 0
    session, tables = (
        onnxruntime.InferenceSession(folder / "served.onnx"),
        load_file(folder / "served.tables.safetensors"),
    )
    reader, rows, shared = SplitReader(data, "test", 1_000), [], 0
    batch = reader.read(reader.blocks[0])
    ids, keys = iter(batch.ids.T), iter(batch.keys.T)
    for name in json.loads(session.get_modelmeta().custom_metadata_map["tables"]):
        found = tables.get(f"{name}.keys")
        numbers = next(ids) if found is None else rows_of(found, next(keys))
        rows.append(tables[name][numbers])
        shared += 0 if found is None else np.count_nonzero(numbers == 1)
    assert shared, "some keys of the test rows have no row"
    given = {"dense": batch.dense, "rows": np.stack(rows, axis=1)}
    return session.run(["probability"], given)[0]


def rows_of(keys, wanted):
    """Row numbers of keys, as the guide has it."""
    i = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(wanted == 0, 0, np.where(keys[i] == wanted, 2 + i, 1))
