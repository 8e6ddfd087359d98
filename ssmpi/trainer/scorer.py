"""A finished model ready to score: its dense weights here, its tables here or on embedding PSs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.data.batch import Batch
from ssmpi.model.replica import Replica
from ssmpi.runtime.mpi.world import World
from ssmpi.runtime.stop import Stop
from ssmpi.state.checkpoint.data_origin import DataOrigin
from ssmpi.state.recovery.start import Start
from ssmpi.trainer.evaluate import Evaluator
from ssmpi.trainer.tables import Tables

if TYPE_CHECKING:
    from ssmpi.config import Config


class Scorer:
    """Scores with the model saved in the folder ``model``, whose network is that of ``config``."""

    def __init__(self, config: Config, world: World, model: Path) -> None:
        self._config, self._world = config, world
        world.start_heartbeat(config.waiting)
        self._tables = Tables(config, world, DataOrigin.of_model(model, config.data.folder), Start(model))
        self._replica = Replica.saved(config.network, config.model.precision, model / "dense.h5")

    def evaluate(self, split: str) -> dict[str, float]:
        """Metrics on one split of the data folder; every trainer takes part and gets the same."""
        folder = Path(self._config.data.folder)
        evaluator = Evaluator(
            self._config.evaluate, folder, self._world, self._tables.lookups, self._replica.scoring_model, Stop()
        )
        metrics = evaluator.run(split, self._replica.vector, self._config.waiting)
        assert metrics is not None
        return metrics

    def scores(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, np.ndarray]]:
        """Each batch with its logits float32 (batch,), in order, on this thread."""
        model = self._replica.scoring_model()
        for batch, rows in self._tables.lookups(0).prefetched(batches):
            yield batch, model.score(batch.dense, rows.values)

    def goodbye(self) -> None:
        """Tell the embedding PSs that no more requests follow."""
        self._tables.transport.goodbye()
