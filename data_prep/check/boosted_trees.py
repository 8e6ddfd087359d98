"""Boosted trees on target encodings, by scikit-learn: what the rows of a table give without any embedding.

An id is encoded by the click rate of its training rows, drawn towards that of all ids as if it had ``PRIOR_ROWS`` more
of such; a list by the mean over its ids, and by how many it has, each id once. Training rows are cross-fitted: a row is
encoded without the labels of its fold, its own among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import islice
from typing import Any, Protocol

import numpy as np

PRIOR_ROWS = 20.0
FOLDS = 5
MOST_TREES, PATIENCE = 150, 10  # trees, and how many may follow without a gain on validation rows


class LabelledRows(Protocol):
    """Some rows: ``matrix`` in compressed sparse row format, ids before numbers, and label uint8 (rows,)."""

    @property
    def matrix(self) -> Any:
        """(rows, columns)."""

    @property
    def label(self) -> np.ndarray:
        """Of each row."""


class BoostedTrees:
    """Trees fitted on a ``sample`` of the ``training`` rows, which all count for the encodings; as many trees as are
    best on ``held`` rows. ``first`` (features + 1,): the first column of each feature's ids, and of the numbers;
    ``lists``: the features that are lists.
    """

    def __init__(
        self,
        first: np.ndarray,
        lists: Sequence[int],
        training: Iterable[LabelledRows],
        sample: LabelledRows,
        held: LabelledRows,
    ) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier

        self._first, self._lists = first, list(lists)
        self._counts = reduce(np.add, (_counts(rows.matrix, rows.label) for rows in training))
        folds = [np.arange(fold, len(sample.label), FOLDS) for fold in range(FOLDS)]
        encoded = [self._encoded(sample.matrix[rows], sample.label[rows]) for rows in folds]
        self._model = HistGradientBoostingClassifier(
            learning_rate=0.3,
            max_leaf_nodes=15,
            min_samples_leaf=max(20, len(sample.label) // 100),  # smaller leaves overfit
            max_bins=127,
            max_iter=MOST_TREES,
            early_stopping=True,
            n_iter_no_change=PATIENCE,
            random_state=0,
        )
        self._model.fit(
            np.concatenate(encoded),
            sample.label[np.concatenate(folds)],
            X_val=self._encoded(held.matrix),
            y_val=held.label,
        )
        self._trees = max(1, int(np.argmax(self._model.validation_score_)))  # the first score is that without trees
        self.settings = {"trees": self._trees, "rows_fitted": len(sample.label)}

    def scores(self, matrix: Any) -> np.ndarray:
        """Probabilities float64 (rows,)."""
        from scipy.special import expit

        stages = self._model.staged_decision_function(self._encoded(matrix))  # it also has the trees after the best
        found: np.ndarray = expit(next(islice(stages, self._trees - 1, None)))
        return found

    def _encoded(self, matrix: Any, own: np.ndarray | None = None) -> np.ndarray:
        """Encodings, lengths of lists, numbers: float32 (rows, columns); without the rows' ``own`` labels."""
        from scipy.sparse import csr_matrix

        ids, features = self._first[-1], len(self._first) - 1
        clicks, rows = (self._counts if own is None else self._counts - _counts(matrix, own))[:, :ids]
        rate = clicks.sum() / max(rows.sum(), 1)
        encodings = (clicks + PRIOR_ROWS * rate) / (rows + PRIOR_ROWS)
        places = np.arange(ids), np.repeat(np.arange(features), np.diff(self._first))
        there = csr_matrix((np.ones_like(matrix.data), matrix.indices, matrix.indptr), matrix.shape)

        def added(values: np.ndarray) -> np.ndarray:
            """Of the ids that a row has of each feature, (rows, features)."""
            found: np.ndarray = (there @ csr_matrix((values, places), (matrix.shape[1], features))).toarray()
            return found

        lengths = added(np.ones(ids))
        means = np.where(lengths > 0, added(encodings) / np.maximum(lengths, 1), rate)
        return np.hstack([means, lengths[:, self._lists], matrix[:, ids:].toarray()]).astype(np.float32)


def _counts(matrix: Any, label: np.ndarray) -> np.ndarray:
    """For each column, clicks and all rows that have it: float64 (2, columns)."""
    clicked, columns = np.repeat(label, np.diff(matrix.indptr)), matrix.shape[1]
    return np.stack([np.bincount(matrix.indices, clicked, columns), np.bincount(matrix.indices, minlength=columns)])
