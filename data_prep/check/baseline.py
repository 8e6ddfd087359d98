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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssmpi.data import columns
from ssmpi.data.schema import DatasetManifest, open_shard, read_manifest
from ssmpi.data.shard_columns import Columns, Lists, read_columns
from ssmpi.runtime.errors import DataError, UserError
from ssmpi.runtime.files import atomic_file

SAMPLE_ROWS = 200_000  # for choosing the settings
WHOLE_VALUES = 120_000_000  # up to here all training rows are kept in memory, 8 bytes a value
FIRST_STRENGTH, STRENGTH_STEP = 0.03, 3.0
TOLERANCE = 1e-4  # of the gradient; without dense features 1e-3 is reached where the solver starts
MOST_STEPS, MOST_PASSES = 300, 30  # of the solver, with rows in memory, and reading all shards in each
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


class Regression(NamedTuple):
    """A fitted regression: ``weights`` float64 (columns + 1,), the intercept last; the strength C of its
    regularization, and how many steps the solver took.
    """

    weights: np.ndarray
    strength: float
    iterations: int

    def probability(self, rows: DesignRows) -> np.ndarray:
        """Of a click, float64 (rows,)."""
        from scipy.special import expit

        found: np.ndarray = expit(rows.matrix @ self.weights[:-1] + self.weights[-1])
        return found


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

    Of training rows with more than ``whole_values`` ids and numbers one shard is in memory at a time.
    Raises DataError when the set is unlabelled or lacks a split, UserError when scikit-learn is not installed.
    """
    _scikit("metrics")  # before any reading
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
        raise DataError(f"{folder}: all training labels are the same, nothing can be learnt; prepare more rows")
    for name in dict.fromkeys(("train", "validation", split)):
        for entry in manifest.split(name).shards:
            columns.check(folder, entry, manifest)
    data = DesignMatrix(folder, manifest)
    fit = _search(data, in_memory=data.values <= whole_values)
    label, constant, regression = [], [], []
    for rows in data.shards(split):
        label.append(rows.label)
        constant.append(np.full(len(rows.label), rate))
        regression.append(fit.probability(rows))
    truth = np.concatenate(label)
    settings = {"solver": "lbfgs", "C": round(fit.strength, 8), "iterations": fit.iterations}
    return {
        "format": "ssmpi-baseline",
        "split": split,
        "rows": len(truth),
        "train_rows": train.rows,
        "constant": {"rate": rate, **scores(truth, np.concatenate(constant))},
        "logistic_regression": {**settings, **scores(truth, np.concatenate(regression))},
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


def _search(data: DesignMatrix, *, in_memory: bool) -> Regression:
    """Search the strength of the regularization from a middle value to the best on validation, on a sample of the
    training rows; then go on from there with all of them.
    """
    sample, held = data.head("train", SAMPLE_ROWS), data.head("validation", SAMPLE_ROWS)
    tried: dict[int, tuple[float, Regression]] = {}

    def attempt(step: int) -> None:
        found = _fit(lambda: [sample], FIRST_STRENGTH * STRENGTH_STEP**step, np.zeros(data.columns + 1), MOST_STEPS)
        tried[step] = float(_scikit("metrics").log_loss(held.label, found.probability(held), labels=[0, 1])), found

    for step in (-1, 0, 1):
        attempt(step)
    while (best := min(tried, key=lambda step: tried[step][0])) in (min(tried), max(tried)) and len(tried) < 8:
        attempt(best + (1 if best == max(tried) else -1))
    start = tried[best][1]
    whole = data.head("train", data.manifest.split("train").rows) if in_memory else None
    found = _fit(
        lambda: [whole] if whole else data.shards("train"), start.strength, start.weights,
        MOST_STEPS if in_memory else MOST_PASSES,
    )  # fmt: skip
    return found._replace(iterations=start.iterations + found.iterations)


def _fit(parts: Callable[[], Iterable[DesignRows]], strength: float, start: np.ndarray, most: int) -> Regression:
    """Minimize the mean log-loss of the rows in ``parts`` and the penalty 1 / (2 * strength * rows) of squared weights,
    as scikit-learn does, by L-BFGS: at most so many steps, each of which goes through all parts.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        rows, total, gradient = 0, 0.0, np.zeros_like(weights)
        for part in parts():
            logit = part.matrix @ weights[:-1] + weights[-1]
            total += float((np.logaddexp(0, logit) - part.label * logit).sum())
            rows += len(part.label)
            residual = expit(logit) - part.label
            gradient[:-1] += part.matrix.T @ residual
            gradient[-1] += residual.sum()
        inner = weights[:-1] / (strength * rows)
        gradient /= rows
        gradient[:-1] += inner
        return total / rows + float(inner @ weights[:-1]) / 2, gradient

    options = {"maxiter": most, "maxls": 50, "gtol": TOLERANCE, "ftol": 64 * np.finfo(float).eps}
    found = minimize(loss, start, method="L-BFGS-B", jac=True, options=options)
    return Regression(found.x, strength, int(found.nit))


def _scikit(part: str) -> Any:
    """A module of scikit-learn, an optional dependency used only here."""
    try:
        return importlib.import_module(f"sklearn.{part}")
    except ImportError as error:
        raise UserError(
            "the baseline needs scikit-learn, which is not installed: pip install 'ssmpi[baseline]'"
        ) from error
