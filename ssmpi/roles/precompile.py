"""Loads or compiles every kernel of a training step before the clock starts: the first call of each takes up to
seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ssmpi.data.schema import DENSE_FEATURES, SPARSE_FEATURES
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.embedding.transport import LocalTables
from ssmpi.model.optim import DenseOptimizer
from ssmpi.model.replica import Replica
from ssmpi.roles.progress import Progress

if TYPE_CHECKING:
    from ssmpi.config import Config


def compile_kernels(config: Config, replica: Replica, optimizer: DenseOptimizer) -> None:
    """One step on made-up rows that leaves ``replica`` and ``optimizer`` as they were."""
    rows, placement = 2, place((1,) * SPARSE_FEATURES, 1)
    lookups = Lookups(LocalTables(Arena(config.embedding, placement, 0, seed=0)), placement, config.embedding, thread=0)
    lookup = lookups.pull(np.zeros((rows, SPARSE_FEATURES), np.int32))
    model = replica.thread_model(replica.vector.copy())
    labels = np.zeros(rows, np.float32)
    logits, by_rows = model.forward_backward(np.zeros((rows, DENSE_FEATURES), np.float32), lookup.values, labels)
    Progress(1, 1, config.schedule).record(0, logits, labels)
    lookups.push(lookup, by_rows)
    model.gradients.zero_()
    optimizer.step(model, 0.0)
