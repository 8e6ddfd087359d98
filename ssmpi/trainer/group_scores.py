"""GAUC over all trainers: scores of a group's rows meet on one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.data.schema import MISSING_KEY, RARE_ID
from ssmpi.runtime.mpi.to_owners import to_owners
from ssmpi.runtime.mpi.waiting import WaitOptions, wait
from ssmpi.runtime.quality import SCORE, group_auc_sums

if TYPE_CHECKING:
    from ssmpi.data.batch import Batch
    from ssmpi.data.features import GroupColumn
    from ssmpi.runtime.mpi.messages import Conversation

WHOM = "the other trainers (to evaluate)"


class GroupScores:
    """What one thread has scored, of rows whose group has a key, or an id of its own, in a ``column``: rows without a
    group share an id or key, and rare groups share an id, and neither is a group.
    """

    def __init__(self, column: GroupColumn | None) -> None:
        self.column, self._parts = column, [np.empty(0, SCORE)]

    def add(self, batch: Batch, logits: np.ndarray) -> None:
        """Keep the scores of a batch, logits float32 (batch,); nothing if the data has no groups."""
        if self.column is None:
            return
        number, keyed = self.column
        groups = batch.keys[:, number] if keyed else batch.column(number)
        known = groups != MISSING_KEY if keyed else groups > RARE_ID
        part = np.empty(np.count_nonzero(known), SCORE)
        part["group"], part["logit"], part["label"] = groups[known], logits[known], batch.labels[known]
        self._parts.append(part)

    @property
    def rows(self) -> np.ndarray:
        """SCORE (rows,): all that was kept."""
        return np.concatenate(self._parts)


def gauc(threads: Sequence[GroupScores], rows: float, trainers: Conversation, waiting: WaitOptions) -> dict[str, float]:
    """GAUC of what all trainers have scored, and the share of the ``rows`` that it is over; nothing if the data has no
    groups. Every trainer calls it with what its ``threads`` have, and gets the same.
    """
    if threads[0].column is None:
        return {}
    scores = np.concatenate([thread.rows for thread in threads])
    owners = scores["group"] % trainers.size
    counts = np.zeros((trainers.size, trainers.size), np.int64)
    counts[trainers.rank] = np.bincount(owners, minlength=trainers.size)
    wait(trainers.iallreduce(counts), waiting, WHOM)
    (ours,) = to_owners(trainers, [scores[np.argsort(owners, kind="stable")]], counts, waiting, WHOM)
    sums = group_auc_sums(ours)
    wait(trainers.iallreduce(sums), waiting, WHOM)
    total, over = map(float, sums)
    return {"gauc": total / over if over else np.nan, "gauc_share": over / rows if rows else np.nan}
