"""``ssmpi-prepare baseline``: scores a constant and a logistic regression on a prepared data set, as a baseline for
models.

A trained model is useful only if it clearly beats these on the same rows. The regression sees every feature (ids
one-hot, those of a list added up by its pooling, integers standardised) and all training rows; its settings are chosen
by log-loss on the validation split.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssmpi.data import columns
from ssmpi.data.schema import DatasetManifest, open_shard, read_manifest
from ssmpi.data.shard_columns import Columns, Lists, read_columns
from ssmpi.runtime.errors import DataError, UserError
from ssmpi.runtime.files import atomic_file

SAMPLE_ROWS = 200_000  # for choosing the settings
WHOLE_VALUES = 120_000_000  # up to here all training rows are kept in memory, 8 bytes a value, and solved exactly
FIRST_STRENGTH, STRENGTH_STEP = 0.03, 3.0
TOLERANCE = 1e-4  # of the gradient; without dense features 1e-3 is reached where the solver starts
PENALTIES = (1e-6, 1e-5, 1e-4)
STEP_SIZES = (0.001, 0.003, 0.01, 0.03)
MOST_PASSES = 5
METRICS = {"log_loss": "log-loss", "ne": "NE", "auc": "AUC", "accuracy": "accuracy"}


class DesignRows(NamedTuple):
    """Some rows: ``matrix`` float32 (rows, sum of cardinalities + dense) in compressed sparse row format, label uint8
    (rows,).
    """

    matrix: Any
    label: np.ndarray


class DesignMatrix:
    """A column for each id of each feature, one after the other, and for each dense feature, standardised by mean and
    deviation of the training rows. An id of a list counts as its pooling says: 1, its weight, or in a mean one divided
    by the length of the list; more than once, it adds up. ``values``: ids and numbers of all training rows.
    """

    def __init__(self, folder: Path, manifest: DatasetManifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._first = np.concatenate([[0], np.cumsum(manifest.cardinalities)])  # columns of the features' ids 0
        self.columns = int(self._first[-1]) + len(manifest.features.dense)
        features, train = manifest.features, manifest.split("train")
        self.values = train.rows * (len(features.one_id) + len(features.dense))
        self.values += sum(entry.list_ids for entry in train.shards)
        total, squares = np.zeros(len(features.dense)), np.zeros(len(features.dense))
        for shard, _ in self._opened("train"):
            dense = shard["dense"][:].astype(np.float64)
            total, squares = total + dense.sum(axis=0), squares + (dense**2).sum(axis=0)
        deviation = np.sqrt(np.maximum(squares / train.rows - (total / train.rows) ** 2, 0))
        self.mean, self.deviation = total / train.rows, np.where(deviation > 0, deviation, 1.0)

    def shards(self, split: str, share: float = 1.0) -> Iterator[DesignRows]:
        """The rows of a split, shard by shard, or the first ones, so large a ``share`` of each."""
        for shard, count in self._opened(split):
            rows = read_columns(shard, 0, int(np.ceil(share * count)))
            assert rows.label is not None
            yield DesignRows(self.matrix(rows), rows.label)

    def head(self, split: str, rows: int) -> DesignRows:
        """About ``rows`` rows of a split, the same share of every shard."""
        from scipy.sparse import vstack

        parts = list(self.shards(split, min(1.0, rows / self.manifest.split(split).rows)))
        return DesignRows(
            vstack([part.matrix for part in parts], "csr"), np.concatenate([part.label for part in parts])
        )

    def matrix(self, rows: Columns) -> Any:
        """The matrix of rows that were read."""
        from scipy.sparse import csr_matrix

        features, count = self.manifest.features, len(rows)
        one_id = rows.ids + self._first[[features.sparse.index(name) for name in features.one_id]]
        dense = np.broadcast_to(self._first[-1] + np.arange(len(features.dense)), rows.dense.shape)
        standard = (rows.dense - self.mean) / self.deviation
        values = np.concatenate([np.ones(one_id.shape), standard], axis=1).astype(np.float32)
        places = np.concatenate([one_id, dense], axis=1).astype(np.int32)
        ends = np.arange(count + 1) * values.shape[1]
        found = csr_matrix((values.reshape(-1), places.reshape(-1), ends), shape=(count, self.columns))
        return found + csr_matrix(self._listed(rows.lists), shape=found.shape) if rows.lists else found

    def _listed(self, lists: Lists) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """The values of ids of lists, with their rows and columns."""
        features, lengths = self.manifest.features, lists.lengths
        names = features.list_names
        means = np.array([features.lists[name].pooling == "mean" for name in names])
        values = np.repeat(np.where(means, 1.0 / np.maximum(lengths, 1), 1.0).reshape(-1), lengths.reshape(-1))
        if lists.weights is not None:
            values *= lists.weights
        first = self._first[[features.sparse.index(name) for name in names]]
        row = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths.sum(axis=1))
        return values.astype(np.float32), (row, (lists.ids + first[lists.features]).astype(np.int32))

    def _opened(self, split: str) -> Iterator[tuple[Any, int]]:
        """The shards of a split that have rows, and how many."""
        for entry in self.manifest.split(split).shards:
            if entry.rows:
                with open_shard(self.folder, entry, self.manifest) as shard:
                    yield shard, entry.rows


class FittedModel(NamedTuple):
    """A fitted scikit-learn classifier and the settings that were chosen for it."""

    model: Any
    settings: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssmpi-prepare baseline``."""
    parser.add_argument("folder", type=Path, help="a prepared data set")
    parser.add_argument("--split", default="test", help="which rows to score (default test)")
    parser.add_argument("--output", "--json", type=Path, metavar="FILE", help="also write the scores to FILE")


def run(arguments: argparse.Namespace) -> int:
    """Score both and print a table; returns exit code 0. Raises UserError."""
    if arguments.output:
        atomic_file.check(arguments.output)
        atomic_file.check_replaceable(arguments.output, re.compile(rb'\s*\{\s*"format": "ssmpi-baseline"'))
    report = baseline(arguments.folder, arguments.split)
    if arguments.output:
        atomic_file.write(arguments.output, json.dumps(report, indent=1) + "\n")
    print(table(report))
    return 0


def baseline(folder: Path, split: str = "test", whole_values: int = WHOLE_VALUES) -> dict[str, Any]:
    """Fit on ``train``, choose on ``validation``, score on ``split``; the scores as a dictionary for JSON.

    Training rows with more than ``whole_values`` ids and numbers are fitted by stochastic gradient descent, shard by
    shard.
    Raises DataError when the set is unlabelled or lacks a split, UserError when scikit-learn is not installed.
    """
    _scikit("linear_model")  # before any reading
    began = time.monotonic()
    manifest = read_manifest(folder)
    if not manifest.labelled:
        raise DataError(f"{folder}: has no labels, so nothing can be scored; prepare a labelled set")
    if manifest.features.keyed:
        raise DataError(
            f"{folder}: {', '.join(manifest.features.keyed)} have 64-bit keys, of which the regression cannot have a "
            "weight each; prepare the same rows with a vocabulary for it"
        )
    for name in ("train", "validation", split):
        if not manifest.split(name).rows:
            raise DataError(f"{folder}: split '{name}' has no rows; prepare more rows")
    train = manifest.split("train")
    rate = train.positives / train.rows
    if not 0 < rate < 1:
        raise DataError(f"{folder}: all training labels are the same, so there is nothing to learn; prepare more rows")
    for name in dict.fromkeys(("train", "validation", split)):
        for entry in manifest.split(name).shards:
            columns.check(folder, entry, manifest)
    data = DesignMatrix(folder, manifest)
    fit = (_solve if data.values <= whole_values else _descend)(data)
    label, constant, regression = [], [], []
    for rows in data.shards(split):
        label.append(rows.label)
        constant.append(np.full(len(rows.label), rate))
        regression.append(fit.model.predict_proba(rows.matrix)[:, 1])
    truth = np.concatenate(label)
    return {
        "format": "ssmpi-baseline",
        "split": split,
        "rows": len(truth),
        "train_rows": train.rows,
        "constant": {"rate": rate, **scores(truth, np.concatenate(constant))},
        "logistic_regression": {**fit.settings, **scores(truth, np.concatenate(regression))},
        "seconds": round(time.monotonic() - began, 1),
    }


def scores(label: np.ndarray, probability: np.ndarray) -> dict[str, float | None]:
    """log_loss, ne, auc, accuracy by scikit-learn; ne and auc are None when all labels are the same.

    label uint8 (rows,), probability float64 (rows,). NE: log-loss over that of always predicting the mean label.
    """
    metrics = _scikit("metrics")
    log_loss = float(metrics.log_loss(label, probability, labels=[0, 1]))
    found = {"log_loss": log_loss, "accuracy": float(metrics.accuracy_score(label, probability >= 0.5))}
    mean = float(label.mean())
    if not 0 < mean < 1:
        return {**found, "ne": None, "auc": None}
    entropy = -mean * np.log(mean) - (1 - mean) * np.log(1 - mean)
    return {**found, "ne": log_loss / float(entropy), "auc": float(metrics.roc_auc_score(label, probability))}


def table(report: dict[str, Any]) -> str:
    """The report as a few lines of text."""
    lines = [
        f"{report['split']}, {report['rows']:,} rows; fitted on {report['train_rows']:,} rows in {report['seconds']} s"
    ]
    lines.append(f"{'':<20}" + "".join(f"{title:>10}" for title in METRICS.values()))
    for name in ("constant", "logistic_regression"):
        values = (report[name][metric] for metric in METRICS)
        cells = "".join(f"{'-' if value is None else format(value, '.4f'):>10}" for value in values)
        lines.append(f"{name.replace('_', ' '):<20}" + cells)
    return "\n".join(lines)


def _solve(data: DesignMatrix) -> FittedModel:
    """Fit by L-BFGS; searches the regularisation strength from a middle value to the best on validation."""
    sample, held = data.head("train", SAMPLE_ROWS), data.head("validation", SAMPLE_ROWS)

    def loss(step: int) -> float:
        return _log_loss(_regression(FIRST_STRENGTH * STRENGTH_STEP**step).fit(*sample), held)

    tried = {step: loss(step) for step in (-1, 0, 1)}
    while (best := min(tried, key=lambda step: tried[step])) in (min(tried), max(tried)) and len(tried) < 8:
        step = best + (1 if best == max(tried) else -1)
        tried[step] = loss(step)
    strength = round(FIRST_STRENGTH * STRENGTH_STEP**best, 8)
    model = _regression(strength).fit(*data.head("train", data.manifest.split("train").rows))
    return FittedModel(model, {"solver": "lbfgs", "C": strength, "iterations": int(model.n_iter_[0])})


def _regression(strength: float) -> Any:
    return _scikit("linear_model").LogisticRegression(C=strength, max_iter=300, tol=TOLERANCE)


def _descend(data: DesignMatrix) -> FittedModel:
    """Fit by SGD, shard by shard: chooses penalty and step size on a sample, then trains while validation improves."""
    sample, held = data.head("train", 5 * SAMPLE_ROWS), data.head("validation", SAMPLE_ROWS)

    def loss(setting: tuple[float, float]) -> float:
        return _log_loss(_descent(*setting).partial_fit(*sample, classes=[0, 1]), held)

    best = min(((penalty, size) for penalty in PENALTIES for size in STEP_SIZES), key=loss)
    model = _descent(*best)
    losses: list[float] = []
    kept = None
    while len(losses) < MOST_PASSES:
        for rows in data.shards("train"):
            model.partial_fit(*rows, classes=[0, 1])
        losses.append(_log_loss(model, held))
        if losses[-1] > min(losses):
            break
        kept = (model.coef_.copy(), model.intercept_.copy())
    assert kept is not None
    model.coef_, model.intercept_ = kept
    return FittedModel(
        model, {"solver": "sgd", "alpha": best[0], "eta0": best[1], "passes": int(np.argmin(losses)) + 1}
    )


def _descent(penalty: float, size: float) -> Any:
    return _scikit("linear_model").SGDClassifier(
        loss="log_loss", alpha=penalty, learning_rate="invscaling", eta0=size, power_t=0.1, random_state=0
    )


def _log_loss(model: Any, rows: DesignRows) -> float:
    return float(_scikit("metrics").log_loss(rows.label, model.predict_proba(rows.matrix)[:, 1], labels=[0, 1]))


def _scikit(part: str) -> Any:
    """A module of scikit-learn, an optional dependency used only here."""
    try:
        return importlib.import_module(f"sklearn.{part}")
    except ImportError as error:
        raise UserError(
            "the baseline needs scikit-learn, which is not installed: pip install 'ssmpi[baseline]'"
        ) from error
