"""Partial recovery of trainers and sync PSs: a lost replica is restored from the common model, a lost center from the
replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.mpi.waiting import WaitOptions, wait
from ssmpi.state.checkpoint import files, store
from ssmpi.state.checkpoint.trainer_state import Checkpoint

if TYPE_CHECKING:
    from ssmpi.model.parameters import OwnedParameters
    from ssmpi.runtime.mpi.world import World
    from ssmpi.state.recovery.start import Repair
    from ssmpi.sync import Synchronizer


def restore_lost(
    repair: Repair, synchronizer: Synchronizer, world: World, waiting: WaitOptions, owned: OwnedParameters
) -> np.ndarray:
    """Every trainer calls it, once replicated state is equal on all of them. Returns the mean of the surviving
    replicas.

    The shards of lost sync PSs start from that mean, with the optimizer state of the checkpoint. A lost trainer gets
    the center, or the mean if there is no center, and the mean of the other replicas' optimizer states; where no other
    replica survives, the optimizer starts anew.
    """
    lost = world.index in repair.trainers
    living = sum(index not in repair.trainers for _, index in world.replicas.directory.members)
    arrays = [synchronizer.weights, *synchronizer.context.local.optimizer.state().values()]
    means = [np.zeros_like(values) if lost else values / np.float32(living) for values in arrays]
    for mean in means:
        wait(world.replicas.iallreduce(mean), waiting, "the other trainers (to restore lost state)")
    if repair.sync_ps:
        saved = algorithm_state(repair, synchronizer, owned) if world.replicas.rank == 0 else {}
        synchronizer.exchange.restore_center(repair.sync_ps, means[0], saved)
    if lost:
        for values, mean in zip(arrays, means, strict=True):
            values[:] = mean if living else values
        synchronizer.exchange.adopt_model()
    return means[0]


def algorithm_state(repair: Repair, synchronizer: Synchronizer, owned: OwnedParameters) -> Mapping[str, np.ndarray]:
    """The algorithm's state in the newest checkpoint; empty if there is none, or if it is damaged."""
    if not repair.checkpoint or not synchronizer.state():
        return {}
    try:
        checkpoint = Checkpoint.at(repair.checkpoint)
        first = {f"trainer-{member:04}.h5" for member in range(checkpoint.topology.group)}
        for entry in store.read_manifest(repair.checkpoint).files:
            if entry.file in first:
                files.verify(repair.checkpoint, entry)
        same = checkpoint.state["algorithm"] == synchronizer.options.identity
        return checkpoint.arrays(0, owned).below("sync/") if same else {}
    except DataError as error:
        log.warning(f"the optimizer state of lost sync PSs is reset: {error}")
        return {}
