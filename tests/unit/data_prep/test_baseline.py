"""The reference points are what a direct computation with scikit-learn gives, and are chosen without the test rows."""

import argparse
import json
import shutil
import sys
from itertools import pairwise

import h5py
import numpy as np
import pytest
from datasets import FEW, LIST_CARDINALITIES, flip_a_value, make_dataset, make_keyed, make_lists_dataset

from data_prep.check import baseline as module
from data_prep.check import boosted_trees
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
        model = module._regression([train], strength, np.zeros(data.columns + 1), module.TOLERANCE)
        return metrics.log_loss(held.label, model.scores(held.matrix))

    chosen = report["logistic_regression"]["C"]
    assert loss(chosen) <= min(loss(chosen / 3), loss(chosen * 3))


def test_ids_alone_are_fitted(tmp_path):
    """Each of many rare ids has a small gradient: a solver stopped by its size where it began."""
    generator, many, splits = np.random.default_rng(3), (6_000, 3_000), {}
    effects = [generator.normal(size=c) for c in many]
    for split, rows in (("train", 40_000), ("validation", 5_000), ("test", 5_000)):
        ids = np.stack([generator.integers(0, c, rows) for c in many], axis=1).astype(np.int32)
        logit = sum(effect[ids[:, f]] for f, effect in enumerate(effects))
        label = (generator.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.uint8)
        splits[split] = split_of(tmp_path, split, ids, np.zeros((rows, 0)), label)
    write_manifest(tmp_path, DatasetManifest(many, splits, True, features=Features((), ("user", "item"))))
    found = baseline(tmp_path)["logistic_regression"]
    assert found["ne"] < 0.95


@pytest.mark.parametrize("strength", [0.01, 1.0])
def test_the_regression_has_the_least_loss_and_penalty(strength, tmp_path, monkeypatch, metrics):
    """As scikit-learn finds them, also if threads add up blocks of rows, and if many ids are rare."""
    from sklearn.linear_model import LogisticRegression

    folder = make_dataset(tmp_path, 9_000)
    monkeypatch.setattr(module, "BLOCK_ROWS", 1_000)
    data = module.DesignMatrix(folder, read_manifest(folder))
    train = data.head("train", 10**6)
    found = module._regression(train.blocks(), strength, np.zeros(data.columns + 1), module.TOLERANCE)
    matrix = train.matrix.astype(np.float64)
    exact = LogisticRegression(C=strength, max_iter=10_000, tol=1e-9).fit(matrix, train.label)

    def loss(weights, probability):
        return metrics.log_loss(train.label, probability) + (weights**2).sum() / (2 * strength * len(train.label))

    least = loss(exact.coef_, exact.predict_proba(matrix)[:, 1])
    assert least <= loss(found.weights[:-1], found.scores(matrix)) < least + 5e-5
    assert found.settings["iterations"] < 100


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
    assert f"{written['boosted_trees']['auc']:.4f}" in printed
    assert "settings chosen on these rows" in printed


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
        (found,) = data.rows(name)
        np.testing.assert_allclose(found.matrix.toarray(), matrix[name], rtol=1e-5, atol=1e-6)
    assert data.values == 600 * 4 + read_manifest(folder).split("train").shards[0].list_ids
    found = baseline(folder, whole_values=data.values - (solver == "sgd"))["logistic_regression"]
    assert found["solver"] == solver
    assert found["ne"] < 1
    if solver == "lbfgs":
        model = direct(found["C"]).fit(matrix["train"], split["train"][0])
        probability = model.predict_proba(matrix["test"])[:, 1]
        assert found["log_loss"] == pytest.approx(metrics.log_loss(split["test"][0], probability), abs=1e-3)


def test_keys_score_as_ids_do(tmp_path):
    """Those of training rows; ids 0, which are missing, and 1 are what their keys are."""
    ids = make_dataset(tmp_path / "ids", 3_000, cardinalities=(9, 9, 9, 9, 9), features=FEW)
    found, of_keys = baseline(ids), baseline(make_keyed(tmp_path / "keys", ids, ("user", "item")))
    assert found["logistic_regression"]["ne"] < 0.995
    for name in ("logistic_regression", "boosted_trees"):
        assert of_keys[name]["ne"] == pytest.approx(found[name]["ne"], abs=1e-3)


def test_a_key_that_no_training_row_has_is_a_rare_one():
    known, keys = np.array([-(2**62), 3, 2**62]), np.array([3, 0, 4, 2**62, -(2**62), 2**63 - 1])
    assert module._ids_of(keys, known).tolist() == [3, 0, 1, 4, 2, 1]


def split_of(folder, split, ids, dense, label):
    name = f"{split}/shard-00000.h5"
    size, checksum = write_shard(folder / name, Columns(ids.astype(np.int32), dense.astype(np.float32), label), {})
    return Split((ShardEntry(name, len(label), int(label.sum()), size, checksum),))


def made(folder, draw_rows, cardinalities, features):
    """A data set of what ``draw_rows`` gives for a number of rows: ids, dense, probability of a click."""
    generator, splits = np.random.default_rng(7), {}
    for split, rows in (("train", 6_000), ("validation", 2_000), ("test", 2_000)):
        ids, dense, rate = draw_rows(generator, rows)
        label = (generator.random(rows) < rate).astype(np.uint8)
        splits[split] = split_of(folder, split, ids, dense, label)
    write_manifest(folder, DatasetManifest(cardinalities, splits, True, features=features))
    return folder


def test_trees_see_what_a_sum_of_weights_cannot(tmp_path):
    """Clicks where two numbers have the same sign, half of them where an id is even."""

    def rows(generator, count):
        ids, dense = generator.integers(0, 40, (count, 1)), generator.normal(size=(count, 2))
        return ids, dense, np.where(dense.prod(axis=1) > 0, 0.8, 0.2) * (0.5 + 0.5 * (ids[:, 0] % 2))

    found = baseline(made(tmp_path, rows, (40,), Features(("x", "y"), ("shop",))))
    assert found["logistic_regression"]["ne"] < 0.99, "it sees the ids"
    assert found["boosted_trees"]["ne"] < found["logistic_regression"]["ne"] - 0.1
    assert found["boosted_trees"]["trees"] < 300


def test_trees_learn_nothing_from_ids_that_say_nothing(tmp_path):
    """With encodings of a row's own label they would: each id has two or three rows."""

    def rows(generator, count):
        return generator.integers(0, 2_500, (count, 3)), np.zeros((count, 0)), np.full(count, 0.5)

    found = baseline(made(tmp_path, rows, (2_500,) * 3, Features((), ("a", "b", "c"))))
    assert found["boosted_trees"]["ne"] == pytest.approx(1, abs=0.02)


def test_trees_after_the_best_one_are_left_out(prepared):
    data = module.DesignMatrix(prepared[0], read_manifest(prepared[0]))
    train, held = data.head("train", 10**6), data.head("validation", 10**6)
    trees = boosted_trees.BoostedTrees(data.first, [], [train], train, held)
    losses = -trees._model.validation_score_[1:]
    assert trees.settings["trees"] == np.argmin(losses) + 1 < len(losses)
    loss = module._log_loss(held.label, trees.scores(held.matrix))
    assert loss == pytest.approx(losses.min(), abs=1e-9)
    assert loss < losses[-1] - 1e-6


def test_ids_are_encoded_as_scikit_learn_encodes_them(prepared):
    from sklearn.preprocessing import TargetEncoder

    data = module.DesignMatrix(prepared[0], read_manifest(prepared[0]))
    train, test = data.head("train", 10**6), data.head("test", 10**6)
    trees = boosted_trees.BoostedTrees(data.first, [], [train], train, test)
    encoder = TargetEncoder(smooth=boosted_trees.PRIOR_ROWS, target_type="binary")
    encoder.fit(prepared[1]["train"][0], train.label)
    found = trees._encoded(test.matrix)
    np.testing.assert_allclose(found[:, :26], encoder.transform(prepared[1]["test"][0]), rtol=1e-5)
    np.testing.assert_allclose(
        found[:, 26:], (prepared[1]["test"][1] - data.mean) / data.deviation, rtol=1e-4, atol=1e-6
    )


def test_a_list_is_encoded_by_the_mean_of_its_ids(tmp_path):
    folder = make_lists_dataset(tmp_path, 600)
    data, (label, ids, _) = module.DesignMatrix(folder, read_manifest(folder)), by_hand(folder, "train")
    train = data.head("train", 600)
    lists = [data.manifest.features.sparse.index(name) for name in data.manifest.features.list_names]
    found = boosted_trees.BoostedTrees(data.first, lists, [train], train, data.head("test", 60))._encoded(train.matrix)
    there = ids != 0
    rate = there[label == 1].sum() / there.sum()
    encoding = (there[label == 1].sum(axis=0) + 20 * rate) / (there.sum(axis=0) + 20)
    for feature, (begin, end) in enumerate(pairwise(data.first)):
        some = there[:, begin:end]
        wanted = [np.mean(encoding[begin:end][row]) if row.any() else rate for row in some]
        np.testing.assert_allclose(found[:, feature], wanted, rtol=1e-5)
        if feature in lists:
            np.testing.assert_array_equal(found[:, 5 + lists.index(feature)], some.sum(axis=1))
