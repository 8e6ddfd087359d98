"""The model that a run evaluates and saves, whole on every trainer; and what a checkpoint or a model holds of one."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.embedding.table import KEYS
from ssmpi.model import graph
from ssmpi.model.parameters import OwnedParameters
from ssmpi.runtime.mpi.waiting import WaitOptions, wait
from ssmpi.runtime.optimizer_options import STEP
from ssmpi.state.checkpoint import dense_vectors, saved_network
from ssmpi.state.checkpoint.data_origin import KEY, DataOrigin
from ssmpi.state.checkpoint.parent import ALGORITHM
from ssmpi.state.checkpoint.trainer_state import LOG, SELECTION, LiveState, Snapshot
from ssmpi.trainer.metrics.results import RunResults, plain

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.data.position import Position
    from ssmpi.data.reader import SplitReader
    from ssmpi.embedding.placement import Placement
    from ssmpi.model.replica import Replica
    from ssmpi.runtime.mpi.world import World
    from ssmpi.sync import Synchronizer
    from ssmpi.trainer.progress import Progress


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


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """Takes snapshots of a trainer while training is paused; ``results`` only on the first one."""

    config: Config
    reader: SplitReader
    placement: Placement
    model: CommonModel
    live: LiveState
    progress: Progress
    checked: Set[int]
    results: RunResults | None

    def of_trainer(self, vector: np.ndarray, position: Position, selection: Mapping[str, Any]) -> Snapshot:
        """This trainer's share of a checkpoint from which the run resumes at ``position``, with the state of the model
        ``selection``; ``vector`` is the common model.
        """
        arrays, run = self.live.arrays(), dict[str, Any]()
        if self.results:
            numbers, quality = self.results.logbook.state()
            arrays |= {f"{LOG}{name}": values for name, values in quality.items()}
            run = {
                "examples": int(numbers["examples"]),
                "expected_examples": self.reader.rows * self.config.data.passes,
                "topology": asdict(self.config.topology),
                "algorithm": self.config.sync.identity,
                "identity": saved_network.fingerprint(self.config.flat(), self.reader.manifest),
                "position": position.state(),
                "logbook": numbers,
                "evaluations": plain(self.results.evaluations),
                "checked": sorted(self.checked),
                **self._about(),
                SELECTION: selection,
                "ledger": self.results.booking.ledger.state(),
            }
        return replace(self._model(vector, run), arrays=arrays, examples=self.progress.examples_of_all)

    def of_model(self, vector: np.ndarray) -> Snapshot:
        """The present model, with these dense weights, and the optimizer's state. Every trainer calls it; the first one
        saves it.
        """
        arrays, state = self.model.optimizer(), {}
        if self.results:
            examples = int(self.results.logbook.totals()["examples"])
            state = {"examples": examples, **self._about(), ALGORITHM: self.config.sync.identity}
        optimizer = dense_vectors.split(arrays, OwnedParameters(self.model.replica.network))
        found = self._model(vector, state)
        size = sum(values.nbytes for values in arrays.values())
        return replace(
            found, optimizer=[(name, values, {}) for name, values in optimizer.items()], nbytes=found.nbytes + size
        )

    def _model(self, vector: np.ndarray, state: dict[str, Any]) -> Snapshot:
        rows = sum(self.placement.cardinalities) * self.config.rows.row_bytes
        return Snapshot(self.model.replica.datasets(vector), rows + vector.nbytes, state)

    def _about(self) -> dict[str, Any]:
        """The state needed to score a model without its run."""
        origin = DataOrigin.of_data(self.reader.folder, self.reader.manifest)
        return {KEY: origin.state(), saved_network.KEY: graph.as_json(self.model.replica.network), **self._keys()}

    def _keys(self) -> dict[str, Any]:
        """What the dynamic tables hold, by feature."""
        return {KEYS: self.results.keys} if self.results and self.results.keys else {}
