"""Loads or compiles every kernel of a training step before the clock starts: the first call of each takes up to
seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ssmpi.data.batch import Batch
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.local_tables import LocalTables
from ssmpi.embedding.placement import place
from ssmpi.embedding.table import Arena
from ssmpi.embedding.trackers import scope_of
from ssmpi.model.optim import DenseOptimizer
from ssmpi.model.replica import Replica
from ssmpi.roles.progress import Progress

if TYPE_CHECKING:
    from ssmpi.config import Config


def compile_kernels(config: Config, replica: Replica, optimizer: DenseOptimizer) -> None:
    """One step on dummy rows that leaves ``replica`` and ``optimizer`` unchanged."""
    inputs = replica.network.inputs
    rows, placement = 2, place((1,) * inputs.tables, 1)
    arena, scope = Arena(config.rows, placement, 0, seed=0), scope_of(placement, 0)
    if config.tracking.counts:
        arena.set_observer(config.tracking.over(scope, np.zeros(config.tracking.bytes_for(scope), np.uint8)).observe)
    batch = Batch(
        np.zeros((rows, inputs.tables), np.int32),
        np.zeros((rows, inputs.dense), np.float32),
        np.zeros(rows, np.float32),
    )
    batch.like(rows).take(np.arange(rows), 0, batch)
    lookups = Lookups(LocalTables(arena), placement, config.rows, thread=0)
    lookup = lookups.pull(batch.ids)
    model = replica.thread_model(replica.vector.copy())
    logits, by_rows = model.forward_backward(batch.dense, lookup.values, batch.labels)
    Progress(1, 1, config.schedule).record(0, logits, batch.labels)
    lookups.push(lookup, by_rows)
    lookup.occurrences()
    model.gradients[:] = 0.0
    optimizer.step(model, 0.0)
