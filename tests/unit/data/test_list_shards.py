"""Shards with lists of ids, and what a manifest records of them."""

import hashlib
import json
import re
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
from datasets import FEW, FEW_CARDINALITIES, LIST_CARDINALITIES, WITH_LISTS, make_dataset, make_lists_dataset

from data_prep.check.inspect import describe_folder
from data_prep.check.verify import verify
from data_prep.shards.provenance import manifest_checksum
from ssmpi.data import columns
from ssmpi.data.features import CRITEO, Features, ListOptions
from ssmpi.data.reader import SplitReader
from ssmpi.data.schema import read_manifest, write_manifest, write_shard
from ssmpi.data.shard_columns import Columns, Lists, read_columns
from ssmpi.runtime.errors import DataError

SHARD = "train/shard-00000.h5"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_lists_dataset(tmp_path_factory.mktemp("lists"), 1_500)


@pytest.fixture
def copy(data, tmp_path):
    return shutil.copytree(data, tmp_path / "copy")


def test_a_manifest_records_them(data):
    manifest = read_manifest(data)
    assert manifest.features == WITH_LISTS
    assert manifest.features.lists == WITH_LISTS.lists
    assert manifest.features.lists["words"].mean_length == 4.0
    assert json.loads((data / "manifest.json").read_text())["schema_version"] == 2
    assert manifest.features.one_id == ("user", "item")
    assert manifest.features.ids_per_row == (1.0, 2.0, 1.0, 3.0, 4.0)
    assert manifest_checksum(manifest) != manifest_checksum(
        replace(manifest, features=Features(WITH_LISTS.dense, WITH_LISTS.sparse))
    )


def test_a_set_without_lists_keeps_its_bytes(tmp_path):
    """The digest is that of the program before lists."""
    folder = make_dataset(tmp_path, 300, cardinalities=FEW_CARDINALITIES, features=FEW)
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.*")):
        digest.update(path.read_bytes())
    assert digest.hexdigest()[:16] == "3a5838c3214727e4"
    assert "lists" not in CRITEO.record()


def test_lengths_are_no_part_of_what_a_model_reads():
    assert ListOptions("sum", longest=3) == ListOptions("sum", longest=9, mean_length=2.5)
    assert ListOptions("sum") != ListOptions("mean")
    assert ListOptions("sum") != ListOptions("sum", weighted=True)


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ({"shop": {}}, "list feature 'shop' is no sparse feature"),
        ({"tags": {"pooling": "max"}}, "pooling is 'sum' or 'mean', got 'max'"),
        ({"tags": {"pooling": "mean", "weighted": True}}, "a weighted list is pooled by 'sum'"),
        ({"tags": {"longest": 0}}, "the longest list has 0 ids"),
        ({"tags": {"length": 3}}, "its values are not of the expected kinds"),
        ({}, "version 2 of the schema, but its features are of version 1"),
    ],
)
def test_a_manifest_whose_lists_make_no_sense_is_refused(copy, lists, words):
    body = json.loads((copy / "manifest.json").read_text())
    body["features"]["lists"] = lists
    (copy / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(DataError, match=f"manifest.json: damaged: .*{words}"):
        read_manifest(copy)


@pytest.mark.parametrize(
    ("ends", "ids", "weights", "words"),
    [
        ([[2, 1]], 1, None, "do not ascend"),
        ([[1, 2]], 3, None, "do not ascend"),
        ([[-1, 2]], 2, None, "do not ascend"),
        ([[1, 2]], 2, 3, "3 weights for 2 ids"),
    ],
)
def test_lists_that_do_not_fit_are_not_written(ends, ids, weights, words):
    with pytest.raises(DataError, match=words):
        Lists(np.zeros(ids, np.int32), np.array(ends), None if weights is None else np.zeros(weights, np.float32))


def test_a_shard_is_read_as_it_was_written(data):
    """All of it, and any rows of it."""
    manifest = read_manifest(data)
    entry = manifest.splits["train"].shards[1]
    columns.check(data, entry, manifest)
    with h5py.File(data / entry.file) as shard:
        whole = read_columns(shard, 0, entry.rows)
        assert whole.checksum == entry.checksum
        for start, stop in ((0, 0), (0, 5), (17, 300), (entry.rows, entry.rows)):
            some = read_columns(shard, start, stop)
            np.testing.assert_array_equal(some.ids, whole.ids[start:stop])
            np.testing.assert_array_equal(some.lists.lengths, whole.lists.lengths[start:stop])
            first = whole.lists.ends[start - 1, -1] if start else 0
            inside = slice(first, first + len(some.lists.ids))
            np.testing.assert_array_equal(some.lists.ids, whole.lists.ids[inside])
            np.testing.assert_array_equal(some.lists.weights, whole.lists.weights[inside])
            np.testing.assert_array_equal(some.lists.features, whole.lists.features[inside])


def test_verify_finds_a_sound_set_sound(data):
    assert verify(data) == []


@pytest.mark.parametrize("name", ["list_ids", "list_ends", "list_weights"])
def test_one_bit_of_any_list_column_is_found(copy, name):
    manifest = read_manifest(copy)
    with h5py.File(copy / SHARD) as shard:
        at = shard[name].id.get_offset() + shard[name].id.get_storage_size() // 2
    data = bytearray((copy / SHARD).read_bytes())
    data[at] ^= 1
    (copy / SHARD).write_bytes(data)
    with pytest.raises(DataError, match="the checksum of its columns"):
        columns.check(copy, manifest.splits["train"].shards[0], manifest)
    assert len(verify(copy)) == 1


def test_a_shard_without_a_list_column_is_refused(copy):
    """As one of another data set would be."""
    manifest = read_manifest(copy)
    with h5py.File(copy / SHARD, "r+") as shard:
        shard.move("list_weights", "weights")
    with pytest.raises(DataError, match=r"not the shard that the manifest names .*'list_weights': \('float32'"):
        columns.extents(copy, manifest.splits["train"].shards[0], manifest)


def test_lists_beside_keys_are_refused(copy):
    manifest = read_manifest(copy)
    keyed, sizes = manifest.features.sparse[:1], (0, *manifest.cardinalities[1:])
    write_manifest(copy, replace(manifest, features=replace(manifest.features, keyed=keyed), cardinalities=sizes))
    with pytest.raises(
        DataError, match=rf"genres has lists of ids and {keyed[0]} has keys, and rows of both cannot be"
    ):
        SplitReader(copy, "train", 100)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.lists.ids.__setitem__(c.lists.ends[4, 1] - 1, 90), "row 4: id 90 of tags is outside [0, 90)"),
        (lambda c: c.lists.weights.__setitem__(c.lists.ends[9, 2] - 1, np.nan), "row 9: a weight of words is nan"),
        (lambda c: c.ids.__setitem__((3, 1), 200), "row 3: id 200 of item is outside [0, 200)"),
    ],
)
@pytest.mark.parametrize("slice_bytes", [columns.SLICE, 200])  # all rows at once; a few at a time
def test_a_bad_value_is_named(copy, monkeypatch, change, words, slice_bytes):
    """Of a set that a faulty program wrote, checksum and all; before training too."""
    monkeypatch.setattr(columns, "SLICE", slice_bytes)
    body = json.loads((copy / "manifest.json").read_text())
    entry = body["splits"]["train"]["shards"][0]
    with h5py.File(copy / SHARD) as shard:
        found = read_columns(shard, 0, entry["rows"])
    assert found.lists.lengths[4, 1] > 0
    assert found.lists.lengths[9, 2] > 0
    change(found)
    (copy / SHARD).unlink()
    entry["bytes"], entry["checksum"] = write_shard(copy / SHARD, found, {})
    (copy / "manifest.json").write_text(json.dumps(body))
    assert [finding.text for finding in verify(copy)] == [words]
    manifest = read_manifest(copy)
    with pytest.raises(DataError, match=re.escape(f"{SHARD}: {words}; correct")):
        columns.check(copy, manifest.splits["train"].shards[0], manifest)


def test_verify_names_a_list_that_is_too_long(copy):
    manifest = read_manifest(copy)
    features = replace(
        WITH_LISTS, lists={**WITH_LISTS.lists, "genres": ListOptions("mean", longest=3, mean_length=2.0)}
    )
    write_manifest(copy, replace(manifest, features=features))
    assert re.match(
        r"row \d+: 4 ids of genres, whose longest list has 3 \(the first of \d+ such values\)", verify(copy)[0].text
    )


def test_inspect_describes_them(data):
    with h5py.File(data / SHARD) as shard:
        assert set(shard) == {"ids", "dense", "label", "list_ends", "list_ids", "list_weights"}
    text = describe_folder(data)
    totals = {"rows": 0, "ids": 0, "empty": 0}
    for path in data.rglob("*.h5"):
        with h5py.File(path) as shard:
            lengths = np.diff(shard["list_ends"][:].reshape(-1), prepend=0).reshape(-1, 3)[:, 1]
        totals = {
            "rows": totals["rows"] + len(lengths), "ids": totals["ids"] + lengths.sum(),
            "empty": totals["empty"] + (lengths == 0).sum(),
        }  # fmt: skip
    mean, empty = totals["ids"] / totals["rows"], totals["empty"] / totals["rows"]
    assert f"  {'tags':<8}{'sum':>10}{mean:>11.2f}{6:>9}{6:>9}{empty:>9.2%}" in text
    assert re.search(rf"  tags +{LIST_CARDINALITIES[3]} ", text)


def test_a_set_of_lists_alone_has_no_other_ids(tmp_path):
    features = Features((), ("tags",), {"tags": ListOptions("sum", longest=2)})
    found = Columns(np.zeros((2, 0), np.int32), np.zeros((2, 0), np.float32), np.zeros(2, np.uint8),
                    Lists(np.array([1, 2], np.int32), np.array([[0], [2]])))  # fmt: skip
    path = tmp_path / SHARD
    write_shard(path, found, {})
    with h5py.File(path) as shard:
        assert read_columns(shard, 1, 2).lists.lengths.tolist() == [[2]]
    assert features.one_id == ()
