"""GAUC, the AUC within groups of rows such as a user's (Zhou et al., KDD 2018, arXiv 1706.06978)::

GAUC = sum of rows_u AUC_u / sum of rows_u    over groups u that have clicked and not clicked rows

It asks whether a group's own rows are in the right order, and is exact: pairs of equal scores count one half.
"""

from __future__ import annotations

import numpy as np

from ssmpi.runtime.compiled.jit import njit

SCORE = np.dtype([("group", "<i8"), ("logit", "<f4"), ("label", "u1")])  # of a row


def group_auc_sums(scores: np.ndarray) -> np.ndarray:
    """float64 (2,) of scores SCORE (rows,): both sums. Those of disjoint sets of groups add up. NaN if a logit is
    not finite.
    """
    if not np.isfinite(scores["logit"]).all():
        return np.full(2, np.nan)
    order = np.lexsort((scores["logit"], scores["group"]))
    return _sums(*(np.ascontiguousarray(scores[name][order]) for name in ("group", "logit", "label")))


@njit(cache=True, nogil=True)
def _sums(groups: np.ndarray, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of rows in the order of their groups, and within a group in that of their logits."""
    sums = np.zeros(2)
    start, rows = 0, len(groups)
    while start < rows:
        end, negative, positive, twice = start, 0, 0, 0  # ``twice`` the pairs in the right order
        while end < rows and groups[end] == groups[start]:
            logit, negative_here, positive_here = logits[end], 0, 0
            while end < rows and groups[end] == groups[start] and logits[end] == logit:
                positive_here += labels[end] != 0
                negative_here += labels[end] == 0
                end += 1
            twice += positive_here * (2 * negative + negative_here)
            negative += negative_here
            positive += positive_here
        if negative and positive:
            sums[0] += (end - start) * (0.5 * twice / (float(negative) * positive))
            sums[1] += end - start
        start = end
    return sums
