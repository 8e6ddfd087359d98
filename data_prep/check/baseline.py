"""``ssmpi-prepare baseline``: scores a constant, a logistic regression and boosted trees on a prepared data set, as a
baseline for models.

A trained model is useful only if it clearly beats these on the same rows. The regression sees every feature (ids and
keys one-hot, those of a list added up by its pooling, integers standardised) and all training rows. Its settings, and
the number of trees, are chosen by log-loss on the validation split.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_prep.check.boosted_trees import BoostedTrees
from ssmpi.data import columns
from ssmpi.data.schema import MISSING_ID, MISSING_KEY, RARE_ID, DatasetManifest, open_shard, read_manifest
from ssmpi.data.shard_columns import Columns, Lists, read_columns
from ssmpi.runtime.errors import DataError, UserError
from ssmpi.runtime.files import atomic_file

SAMPLE_ROWS = 200_000  # for choosing the settings, and for the trees
BLOCK_ROWS = 1 << 17  # that a thread takes at a time
WHOLE_VALUES = 120_000_000  # up to here all training rows are kept in memory, 8 bytes a value, and solved exactly
FIRST_STRENGTH, STRENGTH_STEP = 0.03, 3.0
TOLERANCE, ROUGH = 3e-6, 1e-5  # of log-loss that a step has to gain, or the solver ends; while settings are chosen
MOST_STEPS = 300
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

    def blocks(self) -> list[DesignRows]:
        """The same in blocks of at most ``BLOCK_ROWS``."""
        cuts = [slice(at, at + BLOCK_ROWS) for at in range(0, len(self.label), BLOCK_ROWS)]
        return [DesignRows(self.matrix[cut], self.label[cut]) for cut in cuts]


class DesignMatrix:
    """A column for each id of each feature, one after the other, and for each dense feature, standardised by mean and
    deviation of the training rows. An id of a list counts as its pooling says: 1, its weight, or in a mean one divided
    by the length of the list; more than once, it adds up. Keys of training rows get ids; other keys share the rare one.
    ``first`` (sparse + 1,): the columns of the features' ids 0. ``values``: ids and numbers of all training rows.
    """

    def __init__(self, folder: Path, manifest: DatasetManifest) -> None:
        self.folder, self.manifest = folder, manifest
        features, train = manifest.features, manifest.split("train")
        self.values = train.rows * (len(features.one_id) + len(features.keyed) + len(features.dense))
        self.values += sum(entry.list_ids for entry in train.shards)
        total, squares = np.zeros(len(features.dense)), np.zeros(len(features.dense))
        keys = [np.empty(0, np.int64)] * len(features.keyed)
        for shard, _ in self._opened("train"):
            dense = shard["dense"][:].astype(np.float64)
            total, squares = total + dense.sum(axis=0), squares + (dense**2).sum(axis=0)
            keys = [np.union1d(known, shard["keys"][:, f]) for f, known in enumerate(keys)]
        self._keys, sizes = [known[known != MISSING_KEY] for known in keys], np.array(manifest.cardinalities)
        sizes[list(features.key_columns)] = [RARE_ID + 1 + len(known) for known in self._keys]
        self.first = np.concatenate([[0], np.cumsum(sizes)])
        self.columns = int(self.first[-1]) + len(features.dense)
        deviation = np.sqrt(np.maximum(squares / train.rows - (total / train.rows) ** 2, 0))
        self.mean, self.deviation = total / train.rows, np.where(deviation > 0, deviation, 1.0)

    def rows(self, split: str, share: float = 1.0) -> Iterator[DesignRows]:
        """The rows of a split in blocks, shard by shard, or the first ones, so large a ``share`` of each."""
        for shard, count in self._opened(split):
            end = int(np.ceil(share * count))
            for at in range(0, end, BLOCK_ROWS):
                rows = read_columns(shard, at, min(at + BLOCK_ROWS, end))
                assert rows.label is not None
                yield DesignRows(self.matrix(rows), rows.label)

    def head(self, split: str, rows: int) -> DesignRows:
        """About ``rows`` rows of a split, the same share of every shard."""
        from scipy.sparse import vstack

        parts = list(self.rows(split, min(1.0, rows / self.manifest.split(split).rows)))
        return DesignRows(
            vstack([part.matrix for part in parts], "csr"), np.concatenate([part.label for part in parts])
        )

    def matrix(self, rows: Columns) -> Any:
        """The matrix of rows that were read."""
        from scipy.sparse import csr_matrix

        features, count = self.manifest.features, len(rows)
        of_ids = [features.sparse.index(name) for name in (*features.one_id, *features.keyed)]
        width = len(of_ids) + len(features.dense)
        values, places = np.ones((count, width), np.float32), np.empty((count, width), np.int32)
        values[:, len(of_ids) :] = (rows.dense - self.mean) / self.deviation
        places[:, : len(features.one_id)] = rows.ids
        for f, known in enumerate(self._keys):
            assert rows.keys is not None
            places[:, len(features.one_id) + f] = _ids_of(rows.keys[:, f], known)
        places[:, : len(of_ids)] += self.first[of_ids].astype(np.int32)
        places[:, len(of_ids) :] = self.first[-1] + np.arange(len(features.dense))
        ends = np.arange(count + 1) * width
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
        first = self.first[[features.sparse.index(name) for name in names]]
        row = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths.sum(axis=1))
        return values.astype(np.float32), (row, (lists.ids + first[lists.features]).astype(np.int32))

    def _opened(self, split: str) -> Iterator[tuple[Any, int]]:
        """The shards of a split that have rows, and how many."""
        for entry in self.manifest.split(split).shards:
            if entry.rows:
                with open_shard(self.folder, entry, self.manifest) as shard:
                    yield shard, entry.rows


def _ids_of(keys: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Ids int64 (rows,) of keys; ``known``: those of training rows, ascending."""
    ids = np.where(np.isin(keys, known), RARE_ID + 1 + np.searchsorted(known, keys), RARE_ID)
    return np.where(keys == MISSING_KEY, MISSING_ID, ids)


class Regression(NamedTuple):
    """A fitted logistic regression: ``weights`` float64 (columns + 1,), the bias behind, and its settings."""

    weights: np.ndarray
    settings: dict[str, Any]

    def scores(self, matrix: Any) -> np.ndarray:
        """Probabilities float64 (rows,) of the rows of a design matrix."""
        from scipy.special import expit

        found: np.ndarray = expit(matrix @ self.weights[:-1] + self.weights[-1])
        return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssmpi-prepare baseline``."""
    parser.add_argument("folder", type=Path, help="a prepared data set")
    parser.add_argument("--split", default="test", help="which rows to score (default test)")
    parser.add_argument("--output", "--json", type=Path, metavar="FILE", help="also write the scores to FILE")


def run(arguments: argparse.Namespace) -> int:
    """Score all and print a table; returns exit code 0. Raises UserError."""
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

    Training rows with more than ``whole_values`` ids and numbers are fitted by stochastic gradient descent, block by
    block.
    Raises DataError when the set is unlabelled or lacks a split, UserError when scikit-learn is not installed.
    """
    _scikit("linear_model")  # before any reading
    from threadpoolctl import threadpool_limits  # which scikit-learn needs

    began = time.monotonic()
    manifest = read_manifest(folder)
    if not manifest.labelled:
        raise DataError(f"{folder}: has no labels, so nothing can be scored; prepare a labelled set")
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
    sample, held = data.head("train", SAMPLE_ROWS), data.head("validation", SAMPLE_ROWS)
    lists = [manifest.features.sparse.index(name) for name in manifest.features.list_names]
    # one beside the other; the environment of MPI jobs allows OpenMP one thread
    with ThreadPoolExecutor(1) as beside, threadpool_limits(len(os.sched_getaffinity(0)), "openmp"):
        whole = list(data.rows("train")) if data.values <= whole_values else None
        fit = beside.submit(_solve, whole, sample, held) if whole else beside.submit(_descend, data, held)
        trees = BoostedTrees(data.first, lists, whole or data.rows("train"), sample, held)
        regression = fit.result()
        scored = [(r.label, regression.scores(r.matrix), trees.scores(r.matrix)) for r in data.rows(split)]
    truth, *found = map(np.concatenate, zip(*scored, strict=True))
    return {
        "format": "ssmpi-baseline",
        "split": split,
        "rows": len(truth),
        "train_rows": train.rows,
        "constant": {"rate": rate, **scores(truth, np.full(len(truth), rate))},
        "logistic_regression": {**regression.settings, **scores(truth, found[0])},
        "boosted_trees": {**trees.settings, **scores(truth, found[1])},
        "seconds": round(time.monotonic() - began, 1),
    }


def scores(label: np.ndarray, probability: np.ndarray) -> dict[str, float | None]:
    """log_loss, ne, auc, accuracy by scikit-learn; ne and auc are None when all labels are the same.

    label uint8 (rows,), probability float64 (rows,). NE: log-loss over that of always predicting the mean label.
    """
    metrics = _scikit("metrics")
    log_loss = _log_loss(label, probability)
    found = {"log_loss": log_loss, "accuracy": float(metrics.accuracy_score(label, probability >= 0.5))}
    mean = float(label.mean())
    if not 0 < mean < 1:
        return {**found, "ne": None, "auc": None}
    entropy = -mean * np.log(mean) - (1 - mean) * np.log(1 - mean)
    return {**found, "ne": log_loss / float(entropy), "auc": float(metrics.roc_auc_score(label, probability))}


def table(report: dict[str, Any]) -> str:
    """The report as a few lines of text."""
    few = report["boosted_trees"]["rows_fitted"]
    trees = "" if few == report["train_rows"] else f" (boosted trees on {few:,})"
    seen = ", and settings chosen on these rows" if report["split"] == "validation" else ""
    lines = [
        f"{report['split']}, {report['rows']:,} rows; fitted on {report['train_rows']:,} rows{trees} in "
        f"{report['seconds']} s{seen}",
        f"{'':<20}" + "".join(f"{title:>10}" for title in METRICS.values()),
    ]
    for name in ("constant", "logistic_regression", "boosted_trees"):
        values = (report[name][metric] for metric in METRICS)
        cells = "".join(f"{'-' if value is None else format(value, '.4f'):>10}" for value in values)
        lines.append(f"{name.replace('_', ' '):<20}" + cells)
    return "\n".join(lines)


def _solve(training: Sequence[DesignRows], sample: DesignRows, held: DesignRows) -> Regression:
    """Fit by L-BFGS; searches the regularisation strength from a middle value to the best on validation, on a sample.
    Each fit begins with the weights of the one before.
    """
    few, tried, step = sample.blocks(), dict[int, tuple[float, Regression]](), 0
    weights = np.zeros(sample.matrix.shape[1] + 1)
    while step not in tried and len(tried) < 8:
        found = _regression(few, round(FIRST_STRENGTH * STRENGTH_STEP**step, 8), weights, ROUGH)
        weights = found.weights
        tried[step] = _log_loss(held.label, found.scores(held.matrix)), found
        best = min(tried, key=lambda step: tried[step][0])
        step = best - 1 if best == min(tried) else best + (best == max(tried))
    chosen = tried[best][1]
    return _regression(training, chosen.settings["C"], chosen.weights, TOLERANCE)


def _regression(blocks: Sequence[DesignRows], strength: float, start: np.ndarray, tolerance: float) -> Regression:
    """The regression with the least sum of losses + squares of weights / (2 strength), from weights (columns + 1,) on.

    The solver has each weight in units of the loss's curvature in it: else those of rare ids, whose gradient is small,
    would need hundreds of steps.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    rows, columns = sum(len(block.label) for block in blocks), len(start) - 1
    rate = np.clip(sum(int(block.label.sum()) for block in blocks) / rows, 1 / rows, 1 - 1 / rows)
    squares = sum(np.bincount(b.matrix.indices, b.matrix.data**2, columns) for b in blocks)
    penalty = 1 / (strength * rows)
    scale = 1 / np.sqrt(np.append(rate * (1 - rate) * squares / rows + penalty, rate * (1 - rate)))

    def part(block: DesignRows, weights: np.ndarray) -> tuple[float, np.ndarray]:
        margin = block.matrix @ weights[:-1] + weights[-1]
        error = expit(margin) - block.label
        loss = np.logaddexp(0, margin).sum(dtype=np.float64) - margin[block.label == 1].sum(dtype=np.float64)
        return loss, np.append(block.matrix.T @ error, error.sum())

    def objective(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        weights = scale * scaled
        gradient = penalty * np.append(weights[:-1], 0)
        loss = gradient @ weights / 2
        for more, added in pool.map(part, blocks, [weights.astype(np.float32)] * len(blocks)):
            loss, gradient = loss + more / rows, gradient + added / rows
        return loss, scale * gradient

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        options = {"ftol": tolerance, "maxiter": MOST_STEPS}
        found = minimize(objective, start / scale, jac=True, method="L-BFGS-B", options=options)
    return Regression(scale * found.x, {"solver": "lbfgs", "C": strength, "iterations": int(found.nit)})


def _descend(data: DesignMatrix, held: DesignRows) -> Regression:
    """Fit by SGD, block by block: chooses penalty and step size on a sample, then trains while validation improves."""
    sample = data.head("train", 5 * SAMPLE_ROWS)

    def loss(setting: tuple[float, float]) -> float:
        return held_loss(_descent(*setting).partial_fit(*sample, classes=[0, 1]))

    def held_loss(model: Any) -> float:
        return _log_loss(held.label, model.predict_proba(held.matrix)[:, 1])

    best = min(((penalty, size) for penalty in PENALTIES for size in STEP_SIZES), key=loss)
    model = _descent(*best)
    losses: list[float] = []
    kept = None
    while len(losses) < MOST_PASSES:
        for rows in data.rows("train"):
            model.partial_fit(*rows, classes=[0, 1])
        losses.append(held_loss(model))
        if losses[-1] > min(losses):
            break
        kept = np.append(model.coef_, model.intercept_)
    assert kept is not None
    settings = {"solver": "sgd", "alpha": best[0], "eta0": best[1], "passes": int(np.argmin(losses)) + 1}
    return Regression(kept, settings)


def _descent(penalty: float, size: float) -> Any:
    return _scikit("linear_model").SGDClassifier(
        loss="log_loss", alpha=penalty, learning_rate="invscaling", eta0=size, power_t=0.1, random_state=0
    )


def _log_loss(label: np.ndarray, probability: np.ndarray) -> float:
    return float(_scikit("metrics").log_loss(label, probability, labels=[0, 1]))


def _scikit(part: str) -> Any:
    """A module of scikit-learn, an optional dependency used only here."""
    try:
        return importlib.import_module(f"sklearn.{part}")
    except ImportError as error:
        raise UserError(
            "the baseline needs scikit-learn, which is not installed: pip install 'ssmpi[baseline]'"
        ) from error
