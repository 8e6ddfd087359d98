"""Partial recovery of trainers and sync PSs: a lost replica is restored from the common model, a lost center from the
replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.checkpoint import files, store
from ssmpi.checkpoint.trainer_state import Checkpoint
from ssmpi.comm.waiting import WaitOptions, wait
from ssmpi.core.errors import DataError
from ssmpi.files.log import log

if TYPE_CHECKING:
    from ssmpi.comm.world import World
    from ssmpi.model.operators import Parameter
    from ssmpi.recovery.start import Repair
    from ssmpi.sync import Synchronizer


def restore_lost(
    repair: Repair, synchronizer: Synchronizer, world: World, waiting: WaitOptions, layout: Sequence[Parameter]
) -> None:
    """Every trainer calls it, once replicated state is equal on all of them.

    The shards of lost sync PSs start from the mean of the surviving replicas, with the optimizer state of the
    checkpoint. A lost trainer gets the center, or the mean of the surviving replicas if there is no center, and the
    mean of their optimizers' states.
    """
    lost = world.index in repair.trainers
    living = sum(index not in repair.trainers for _, index in world.replicas.directory.members)
    arrays = [synchronizer.weights, *synchronizer.context.local.optimizer.state().values()]
    means = [np.zeros_like(values) if lost else values / np.float32(living) for values in arrays]
    for mean in means:
        wait(world.replicas.iallreduce(mean), waiting, "the other trainers (to restore lost state)")
    if repair.sync_ps:
        saved = algorithm_state(repair, synchronizer, layout) if world.replicas.rank == 0 else {}
        synchronizer.exchange.recenter(repair.sync_ps, means[0], saved)
    if lost:
        for values, mean in zip(arrays, means, strict=True):
            values[:] = mean
        synchronizer.exchange.join()


def algorithm_state(
    repair: Repair, synchronizer: Synchronizer, layout: Sequence[Parameter]
) -> Mapping[str, np.ndarray]:
    """The algorithm's state in the newest checkpoint; empty if there is none, or if it is damaged."""
    if not repair.checkpoint or not synchronizer.state():
        return {}
    try:
        for entry in store.read_manifest(repair.checkpoint).files:
            if entry.file == "trainer-0000.h5":
                files.verify(repair.checkpoint, entry)
        checkpoint = Checkpoint.at(repair.checkpoint)
        same = checkpoint.state["algorithm"] == synchronizer.options.algorithm
        return checkpoint.arrays(0, layout).below("sync/") if same else {}
    except DataError as error:
        log.warning(f"the optimizer state of lost sync PSs is reset: {error}")
        return {}
