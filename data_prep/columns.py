"""The columns of Criteo's raw rows, which are also the features of the prepared data sets."""

from __future__ import annotations

from ssmpi.data.features import CRITEO

DENSE_NAMES, SPARSE_NAMES = CRITEO.dense, CRITEO.sparse
DENSE_FEATURES, SPARSE_FEATURES = len(DENSE_NAMES), len(SPARSE_NAMES)
