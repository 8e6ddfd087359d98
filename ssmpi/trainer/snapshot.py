"""What a checkpoint or a model holds of a trainer, in the types of ``checkpoint``."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.embedding.table import KEYS
from ssmpi.model import graph
from ssmpi.model.parameters import OwnedParameters
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
    from ssmpi.trainer.common_model import CommonModel
    from ssmpi.trainer.model_selection import SelectionState
    from ssmpi.trainer.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """Takes snapshots of a trainer while training is paused; ``results`` only on the first one."""

    config: Config
    reader: SplitReader
    placement: Placement
    replica: Replica
    model: CommonModel
    live: LiveState
    progress: Progress
    checked: Set[int]
    results: RunResults | None

    def of_trainer(self, vector: np.ndarray, position: Position, selection: SelectionState) -> Snapshot:
        """This trainer's share of a checkpoint from which the run resumes at ``position``; ``vector`` is the common
        model.
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
                SELECTION: asdict(selection),
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
        optimizer = dense_vectors.split(arrays, OwnedParameters(self.replica.network))
        found = self._model(vector, state)
        size = sum(values.nbytes for values in arrays.values())
        return replace(
            found, optimizer=[(name, values, {}) for name, values in optimizer.items()], nbytes=found.nbytes + size
        )

    def _model(self, vector: np.ndarray, state: dict[str, Any]) -> Snapshot:
        rows = sum(self.placement.cardinalities) * self.config.rows.row_bytes
        return Snapshot(self.replica.datasets(vector), rows + vector.nbytes, state)

    def _about(self) -> dict[str, Any]:
        """The state needed to score a model without its run."""
        origin = DataOrigin.of_data(self.reader.folder, self.reader.manifest)
        return {KEY: origin.state(), saved_network.KEY: graph.as_json(self.replica.network), **self._keys()}

    def _keys(self) -> dict[str, Any]:
        """What the dynamic tables hold, by feature."""
        return {KEYS: self.results.keys} if self.results and self.results.keys else {}
