"""Number, names and kinds of features are the data set's, from its manifest."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from datasets import FEW, FEW_CARDINALITIES, make_dataset
from runs import train_over_threads, write_run_file

from data_prep.check.baseline import DesignMatrix
from data_prep.check.inspect import describe_folder
from data_prep.shards.provenance import manifest_checksum
from ssmpi.data.features import CRITEO, Features
from ssmpi.data.reader import SplitReader
from ssmpi.data.schema import SPLITS, DatasetManifest, read_manifest, write_manifest
from ssmpi.data.shard_columns import Columns
from ssmpi.data.values import bad_values
from ssmpi.runtime.errors import DataError
from ssmpi.state.checkpoint import model_files
from ssmpi.state.checkpoint.data_origin import DataOrigin
from ssmpi.tools import plan, score

NO_DENSE = Features((), FEW.sparse)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """3 dense and 5 sparse features."""
    return make_dataset(tmp_path_factory.mktemp("few"), 6_000, cardinalities=FEW_CARDINALITIES, features=FEW)


@pytest.fixture(scope="module")
def trained(few, tmp_path_factory):
    """Two trainers and two embedding PSs."""
    settings = ("topology.trainers=2", "topology.embedding_ps=2", "data.passes=2")
    return train_over_threads(tmp_path_factory.mktemp("run"), few, *settings)


def test_a_manifest_records_them(few):
    assert read_manifest(few).features == FEW
    assert json.loads((few / "manifest.json").read_text())["features"] == {
        "dense": ["age", "price", "hour"],
        "sparse": ["user", "item", "shop", "colour", "page"],
    }


def test_sets_of_older_versions_have_criteos(tmp_path, small_data):
    """Their manifests record none, and their own checksums were made without."""
    body = json.loads((small_data / "manifest.json").read_text())
    old = {key: value for key, value in body.items() if key != "features"}
    (tmp_path / "manifest.json").write_text(json.dumps(old))
    assert read_manifest(tmp_path) == read_manifest(small_data)
    assert len(read_manifest(tmp_path).features.dense) == 13
    few_named = Features(tuple(f"x{i}" for i in range(13)), CRITEO.sparse)
    of = {
        features: manifest_checksum(DatasetManifest((9,) * 26, {}, features=features))
        for features in (CRITEO, few_named)
    }
    assert of[CRITEO].startswith("b7e55e12969df330")  # as the version that did not record them gave it
    assert of[CRITEO] != of[few_named]


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({"dense": ["a"], "sparse": ["a", "b"]}, "two features named 'a'"),
        ({"dense": [""], "sparse": ["b"]}, "a feature without a name"),
        ({"dense": ["a"], "sparse": []}, "no sparse features"),
        ({"dense": ["a"], "sparse": ["b", "c"]}, "5 cardinalities, expected 2: one for each sparse feature"),
        ({"sparse": ["b"]}, "its values are not of the expected kinds"),
        (["a"], "its values are not of the expected kinds"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(few, tmp_path, features, words):
    body = json.loads((few / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**body, "features": features}))
    with pytest.raises(DataError, match=f"manifest.json: .*{words}"):
        read_manifest(tmp_path)


def test_a_manifest_with_too_few_tables_is_not_written(tmp_path):
    with pytest.raises(DataError, match="4 cardinalities, expected 5"):
        write_manifest(tmp_path, DatasetManifest((9,) * 4, {}, features=FEW))


def test_a_shard_with_other_columns_is_refused(few, tmp_path):
    manifest = replace(read_manifest(few), features=Features(FEW.dense[:2], FEW.sparse))
    write_manifest(tmp_path, manifest)
    (tmp_path / "train").symlink_to(few / "train")
    with pytest.raises(DataError, match=r"shard-00000.h5: not the shard that the manifest names .*\(6000, 3\)"):
        SplitReader(tmp_path, "train", 1_000).check()


def test_a_shard_with_a_group_in_place_of_a_column_is_refused(few, tmp_path):
    data = Path(shutil.copytree(few, tmp_path / "data"))
    body, shard = json.loads((data / "manifest.json").read_text()), data / "train" / "shard-00000.h5"
    with h5py.File(shard, "r+") as saved:
        del saved["dense"]
        saved.create_group("dense")
    body["splits"]["train"]["shards"][0]["bytes"] = shard.stat().st_size
    (data / "manifest.json").write_text(json.dumps(body | {"provenance": {}}))
    with pytest.raises(DataError, match=r"shard-00000\.h5: damaged HDF5 file"):
        SplitReader(data, "train", 1_000).check()


def test_the_plan_names_them(few, tmp_path):
    text = plan.describe(write_run_file(tmp_path, few))
    assert "5.00 lookups an example: user item shop colour page" in text
    assert "Linear + relu of dense (3)" in text
    assert "pairs (23) = DotInteraction of bottom.2 (8), rows (40)" in text
    assert "640 ids" not in text


def test_a_plan_without_data_says_what_it_assumes(few, tmp_path):
    (tmp_path / "sizes").write_text("400 300 20 # rows\n9 50")
    text = plan.describe(write_run_file(tmp_path, few / "not there"), tables_file=tmp_path / "sizes")
    assert "over 13 dense features as in Criteo's rows: the data is not prepared yet" in text
    assert "C1 C2 C3 C4 C5" in text
    (tmp_path / "sizes").write_text("400 many")
    with pytest.raises(DataError, match="sizes: expected whole numbers, the rows of each table; found many"):
        plan.describe(write_run_file(tmp_path, few), tables_file=tmp_path / "sizes")


def test_they_are_trained_and_scored(trained, alone, capsys):
    assert trained.result["status"] == "complete"
    assert trained.quality("test")["ne"] < 1.0
    assert [len(table) for table in trained.tables()] == list(FEW_CARDINALITIES)
    assert trained.dense()["bottom.0.weight"].shape == (32, 3)
    assert score.evaluate(trained.folder, "test", None) == 0
    assert f"NE {trained.quality('test')['ne']:.5f}" in capsys.readouterr().out


def test_a_model_is_not_scored_on_other_features(trained, few, tmp_path, alone):
    """Equal numbers of ids alone would not tell."""
    origin = DataOrigin.of_model(model_files.find(trained.folder), "")
    assert origin.features == FEW
    (tmp_path / "raw.txt").write_text("raw")
    with pytest.raises(DataError, match=r"raw.txt: raw files are read as Criteo's rows, .*\(3 dense, age, price"):
        score.predict(trained.folder, score.ScoringInput(tmp_path / "raw.txt", "", None), tmp_path / "scores")
    other = replace(read_manifest(few), features=Features(("age",), FEW.sparse))
    with pytest.raises(DataError, match=r"other features \(1 dense, age; 5 sparse, user, item, shop, ...\) than"):
        origin.check(tmp_path, other)


def test_shards_without_dense_features_are_read(tmp_path):
    data = make_dataset(tmp_path / "data", 600, cardinalities=FEW_CARDINALITIES, features=NO_DENSE)
    reader = SplitReader(data, "train", 100)
    reader.check()
    reader.verify(0)
    assert reader.read(reader.blocks[1]).dense.shape == (100, 0)
    assert "bottom.0" not in plan.describe(write_run_file(tmp_path, data))


def test_the_tools_of_preparation_take_them(few):
    """Without a vocabulary too: this set was not made of raw files."""
    said = describe_folder(few)
    assert re.search(r"price +- +\d", said)
    data = DesignMatrix(few, read_manifest(few))
    heads = [data.head(s, 9_999).matrix.toarray() for s in SPLITS]
    begin, end = np.cumsum(FEW_CARDINALITIES)[2:4]
    counts = sum(head[:, begin:end].sum(axis=0).astype(int) for head in heads)
    assert f"colour             9        -        -   {counts.argmax()} {counts.max() / counts.sum():.2%}, " in said
    reader = SplitReader(few, "train", 100)
    rows = reader.read(reader.blocks[0])
    matrix = data.head("train", 100).matrix.toarray()
    assert matrix.shape == (100, sum(FEW_CARDINALITIES) + 3)
    (ones,) = np.nonzero(matrix[7, :-3])
    np.testing.assert_array_equal(ones, rows.ids[7] + np.cumsum([0, *FEW_CARDINALITIES[:-1]]))
    np.testing.assert_allclose(matrix[7, -3:], (rows.dense[7] - data.mean) / data.deviation, rtol=1e-6)
    ids, dense = np.array([[0, 0, 0, 9, 0]], np.int32), np.array([[0.0, np.inf, 0.0]])
    said = list(bad_values(Columns(ids, dense), read_manifest(few)))
    assert said == ["row 0: id 9 of colour is outside [0, 9)", "row 0: price is inf"]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("rows", "x", "rows of shard 'train/shard-00000.h5' is 'x'"),
        ("rows", -5, "rows of shard 'train/shard-00000.h5' is -5"),
        ("rows", 2**60, "rows of shard 'train/shard-00000.h5' is 1,152,921,504,606,846,976, and a shard has at most"),
        ("bytes", 1.5, "bytes of shard 'train/shard-00000.h5' is 1.5"),
        ("positives", None, "positives of shard 'train/shard-00000.h5' is None"),
        ("file", "../../shard.h5", "shard '../../shard.h5' lies outside the data folder"),
        ("file", "/etc/passwd", "shard '/etc/passwd' lies outside the data folder"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_damaged(few, tmp_path, name, value, says):
    folder = shutil.copytree(few, tmp_path / "copy")
    body = json.loads((folder / "manifest.json").read_text())
    body["splits"]["train"]["shards"][0][name] = value
    (folder / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(DataError, match=rf"manifest\.json: damaged: .*{re.escape(says)}"):
        read_manifest(folder)
