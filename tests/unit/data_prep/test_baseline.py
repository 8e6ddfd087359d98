"""The reference points are what a direct computation with scikit-learn gives, and are chosen without the test rows."""

import argparse
import json
import shutil
import sys

import h5py
import numpy as np
import pytest
from datasets import FEW, LIST_CARDINALITIES, flip_a_value, make_dataset, make_keyed, make_lists_dataset

from data_prep.check import baseline as module
from data_prep.check.baseline import baseline
from data_prep.cli import main
from ssmpi.data.features import Features
from ssmpi.data.schema import DatasetManifest, ShardEntry, Split, read_manifest, write_manifest, write_shard
from ssmpi.data.shard_columns import Columns
from ssmpi.runtime.errors import DataError, UserError

CARDINALITY = 8
SHARDS = {"train": (3_000, 1_000), "validation": (1_000,), "test": (1_500,)}


def draw(generator, rows):
    ids = generator.integers(0, CARDINALITY, (rows, 26), dtype=np.int32)
    dense = generator.lognormal(size=(rows, 13)).astype(np.float32)
    logit = 0.5 * (ids[:, 0] - 3.5) + 0.3 * (ids[:, 7] == 2) + 0.4 * np.log(dense[:, 3]) - 1
    label = (generator.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.uint8)
    return ids, dense, label


def prepare(folder, labelled=True, shards=SHARDS):
    generator = np.random.default_rng(5)
    splits, data = {}, {}
    for split, sizes in shards.items():
        entries, parts = [], []
        for number, rows in enumerate(sizes):
            ids, dense, label = draw(generator, rows)
            name = f"{split}/shard-{number:05d}.h5"
            size, checksum = write_shard(folder / name, Columns(ids, dense, label if labelled else None), {})
            entries.append(ShardEntry(name, rows, int(label.sum()), size, checksum))
            parts.append((ids, dense, label))
        splits[split] = Split(tuple(entries))
        data[split] = [np.concatenate(column) for column in zip(*parts, strict=True)]
    write_manifest(folder, DatasetManifest((CARDINALITY,) * 26, splits, labelled))
    return data


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    return folder, prepare(folder)


@pytest.fixture(scope="module")
def report(prepared):
    return baseline(prepared[0])


@pytest.fixture(scope="session")
def direct():
    """scikit-learn's own regression, by strength."""
    from sklearn.linear_model import LogisticRegression

    return lambda strength: LogisticRegression(C=strength, max_iter=300)


def test_constant(prepared, report, metrics):
    train, test = prepared[1]["train"][2], prepared[1]["test"][2]
    assert report["constant"]["rate"] == train.mean()
    assert report["constant"]["log_loss"] == pytest.approx(metrics.log_loss(test, np.full(len(test), train.mean())))
    assert report["constant"]["auc"] == 0.5
    assert report["constant"]["accuracy"] == pytest.approx(1 - test.mean())
    assert report["constant"]["ne"] == pytest.approx(1, abs=0.01)


def test_regression_is_a_direct_one(prepared, report, metrics, direct):
    from sklearn.preprocessing import OneHotEncoder

    data = prepared[1]
    mean, deviation = data["train"][1].mean(axis=0), data["train"][1].std(axis=0)
    encoder = OneHotEncoder(sparse_output=False).fit(np.tile(np.arange(CARDINALITY)[:, None], 26))
    matrix = {s: np.hstack([encoder.transform(d[0]), (d[1] - mean) / deviation]) for s, d in data.items()}
    found = report["logistic_regression"]
    model = direct(found["C"]).fit(matrix["train"], data["train"][2])
    probability = model.predict_proba(matrix["test"])[:, 1]
    label = data["test"][2]
    assert found["log_loss"] == pytest.approx(metrics.log_loss(label, probability), abs=1e-3)
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(label, probability), abs=1e-3)
    assert found["ne"] == pytest.approx(found["log_loss"] / metrics.log_loss(label, np.full(len(label), label.mean())))


def test_regression_beats_the_constant(report):
    assert report["logistic_regression"]["ne"] < report["constant"]["ne"] - 0.1
    assert report["logistic_regression"]["auc"] > 0.7
    assert (report["rows"], report["train_rows"]) == (1_500, 4_000)


def test_settings_are_best_on_validation(prepared, report, metrics):
    data = module.DesignMatrix(prepared[0], module.read_manifest(prepared[0]))
    train, held = data.head("train", 10**6), data.head("validation", 10**6)
    assert (train.label == prepared[1]["train"][2]).all()

    def loss(strength):
        return metrics.log_loss(held.label, module._regression(strength).fit(*train).predict_proba(held.matrix)[:, 1])

    chosen = report["logistic_regression"]["C"]
    assert loss(chosen) <= min(loss(chosen / 3), loss(chosen * 3))


def test_ids_alone_are_fitted(tmp_path):
    """Each of many rare ids has a small gradient: with a tolerance of 1e-3 the solver stopped where it began."""
    generator, many, splits = np.random.default_rng(3), (6_000, 3_000), {}
    effects = [generator.normal(size=c) for c in many]
    for split, rows in (("train", 40_000), ("validation", 5_000), ("test", 5_000)):
        ids = np.stack([generator.integers(0, c, rows) for c in many], axis=1).astype(np.int32)
        logit = sum(effect[ids[:, f]] for f, effect in enumerate(effects))
        label = (generator.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.uint8)
        name = f"{split}/shard-00000.h5"
        size, checksum = write_shard(tmp_path / name, Columns(ids, np.zeros((rows, 0), np.float32), label), {})
        splits[split] = Split((ShardEntry(name, rows, int(label.sum()), size, checksum),))
    write_manifest(tmp_path, DatasetManifest(many, splits, True, features=Features((), ("user", "item"))))
    found = baseline(tmp_path)["logistic_regression"]
    assert found["iterations"] > 1
    assert found["ne"] < 0.95


def test_descent_comes_close(prepared, report):
    found = baseline(prepared[0], whole_values=100 * 39)["logistic_regression"]
    assert found["solver"] == "sgd"
    assert 1 <= found["passes"] <= module.MOST_PASSES
    assert found["log_loss"] == pytest.approx(report["logistic_regression"]["log_loss"], abs=0.02)


def test_head_takes_the_same_share_of_every_shard(prepared):
    data = module.DesignMatrix(prepared[0], module.read_manifest(prepared[0]))
    ids = np.concatenate([prepared[1]["train"][0][part] for part in (slice(300), slice(3000, 3100))])
    found = data.head("train", 400).matrix[:, : 26 * CARDINALITY]
    assert (found.indices.reshape(-1, 26) == ids + CARDINALITY * np.arange(26)).all()


def test_command_line(prepared, tmp_path, capsys):
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    arguments = parser.parse_args([str(prepared[0]), "--split", "validation", "--json", str(tmp_path / "scores.json")])
    assert module.run(arguments) == 0
    written = json.loads((tmp_path / "scores.json").read_text())
    printed = capsys.readouterr().out
    assert "validation, 1,000 rows" in printed
    assert f"{written['logistic_regression']['auc']:.4f}" in printed


def test_a_file_that_is_no_baseline_is_not_replaced(prepared, tmp_path, capsys):
    precious = tmp_path / "run.toml"
    precious.write_text("[data]\n")
    assert main(["baseline", str(prepared[0]), "--json", str(precious)]) == 2
    assert f"{precious}: is there, and not an earlier output" in capsys.readouterr().err
    assert precious.read_text() == "[data]\n"


def test_damaged_rows_are_refused(prepared, tmp_path):
    folder = shutil.copytree(prepared[0], tmp_path / "copy")
    flip_a_value(next((folder / "train").glob("*.h5")))
    with pytest.raises(DataError, match="damaged: the checksum of its columns"):
        baseline(folder)


def test_errors(prepared, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="no split 'holdout'"):
        baseline(prepared[0], "holdout")
    with pytest.raises(DataError, match="no such data folder"):
        baseline(tmp_path / "none")
    prepare(tmp_path / "unlabelled", labelled=False)
    with pytest.raises(DataError, match="has no labels"):
        baseline(tmp_path / "unlabelled")
    prepare(tmp_path / "whole", shards={"train": (100,)})
    with pytest.raises(DataError, match="no split 'validation'"):
        baseline(tmp_path / "whole", "train")
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(UserError, match=r"pip install 'ssmpi\[baseline\]'"):
        baseline(prepared[0])


def by_hand(folder, split):
    """Labels, and a column for each id, list after list as h5py reads them, with dense features behind."""
    (entry,) = read_manifest(folder).split(split).shards
    with h5py.File(folder / entry.file) as shard:
        columns = {name: shard[name][()] for name in shard}
    first, at = np.cumsum([0, *LIST_CARDINALITIES]), 0
    matrix = np.zeros((entry.rows, first[-1]))
    for row in range(entry.rows):
        matrix[row, columns["ids"][row, 0]] = matrix[row, first[2] + columns["ids"][row, 1]] = 1
        for column, (feature, pooling) in enumerate([(1, "mean"), (3, "sum"), (4, "weights")]):
            end = columns["list_ends"][row, column]
            for k in range(at, end):
                weight = {"mean": 1 / (end - at), "sum": 1, "weights": columns["list_weights"][k]}[pooling]
                matrix[row, first[feature] + columns["list_ids"][k]] += weight
            at = end
    return columns["label"], matrix, columns["dense"]


@pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
def test_ids_of_lists_are_pooled_by_hand(tmp_path, solver, metrics, direct):
    """Means, sums with ids that come twice, weights, empty lists; the same regression on what was made by hand."""
    folder = make_lists_dataset(tmp_path, 600)
    split = {name: by_hand(folder, name) for name in ("train", "validation", "test")}
    mean, deviation = split["train"][2].mean(axis=0), split["train"][2].std(axis=0)
    matrix = {name: np.hstack([ids, (dense - mean) / deviation]) for name, (_, ids, dense) in split.items()}
    data = module.DesignMatrix(folder, read_manifest(folder))
    assert matrix["train"][:, 512:602].max() >= 2, "an id is in a list of tags twice"
    for name in split:
        (found,) = data.shards(name)
        np.testing.assert_allclose(found.matrix.toarray(), matrix[name], rtol=1e-5, atol=1e-6)
    assert data.values == 600 * 4 + read_manifest(folder).split("train").shards[0].list_ids
    found = baseline(folder, whole_values=data.values - (solver == "sgd"))["logistic_regression"]
    assert found["solver"] == solver
    assert found["ne"] < 1
    if solver == "lbfgs":
        model = direct(found["C"]).fit(matrix["train"], split["train"][0])
        probability = model.predict_proba(matrix["test"])[:, 1]
        assert found["log_loss"] == pytest.approx(metrics.log_loss(split["test"][0], probability), abs=1e-3)


def test_keys_are_refused_by_name(tmp_path):
    ids = make_dataset(tmp_path / "ids", 100, cardinalities=(9, 9, 9, 9, 9), features=FEW)
    with pytest.raises(DataError, match="user, item have 64-bit keys"):
        baseline(make_keyed(tmp_path / "keys", ids, ("user", "item")))
