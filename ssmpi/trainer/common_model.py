"""The model that a run evaluates and saves, whole on every trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.runtime.mpi.waiting import WaitOptions, wait
from ssmpi.runtime.optimizer_options import STEP

if TYPE_CHECKING:
    from ssmpi.model.replica import Replica
    from ssmpi.runtime.mpi.world import World
    from ssmpi.sync import Synchronizer


@dataclass(frozen=True)
class CommonModel:
    """Of all replicas, by rounds of the ``synchronizer``, and of all members of a group, each of which has what its
    ``replica`` owns. Every trainer makes the same calls, while training is paused.
    """

    synchronizer: Synchronizer
    replica: Replica
    world: World
    waiting: WaitOptions

    def weights(self) -> np.ndarray:
        """float32 (parameters of the network,). The replica takes the common estimates, too."""
        if len(self.replica.estimates.values):
            self.replica.estimates.take_mean(self._measured())
        return self.gathered(self.synchronizer.model())

    def _measured(self) -> np.ndarray:
        """float64 (trainers, operators, columns): what each has measured."""
        trainers, own = self.world.trainers, self.replica.measured.values
        found = np.zeros((trainers.size, *own.shape))
        found[trainers.rank] = own
        wait(trainers.iallreduce(found), self.waiting, "the other trainers (to gather estimates)")
        return found

    def optimizer(self) -> dict[str, np.ndarray]:
        """What a run that continues this one starts its optimizers with, float32 (parameters of the network,) each, and
        the count of steps, which members have in common: the mean of all replicas' ``dense`` state, and what the
        algorithm keeps that is common to all of them, under ``sync``; only on the first replica.
        """
        found = {}
        for name, values in self.synchronizer.context.local.optimizer.state().items():
            total = values.astype(np.float64)
            wait(self.world.replicas.iallreduce(total), self.waiting, "the other trainers (to save the optimizer)")
            mean = total / self.world.replicas.size
            found[f"dense/{name}"] = mean if name == STEP else self.gathered(mean.astype(np.float32))
        if self.world.replicas.rank == 0:
            for name, values in self.synchronizer.state().items():
                if "/" not in name:  # else it is one trainer's own
                    found[f"sync/{name}"] = self.gathered(values)
        return found

    def gathered(self, vector: np.ndarray) -> np.ndarray:
        """The whole of what every member of the group has in its ``vector``, float32 (owned parameters,)."""
        owned = self.replica.owned
        if owned.complete:
            return vector
        whole = owned.within(vector)
        bits = whole.view(np.uint32)  # summed with zeros they stay as they are; -0.0 would not
        wait(self.world.group.iallreduce(bits), self.waiting, "the other members of its group (to gather the model)")
        return whole
