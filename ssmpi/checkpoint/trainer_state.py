"""What a trainer puts into a checkpoint and takes out of it. It goes on exactly, if it is one of as many trainers as saved
it; else from the common model, with the mean of what the dense optimizers remember.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi.checkpoint import files, store
from ssmpi.checkpoint.data_origin import KEY, Origin
from ssmpi.checkpoint.fingerprint import identity
from ssmpi.comm.waiting import wait
from ssmpi.core.errors import DataError
from ssmpi.data.position import Position
from ssmpi.report.results import Earlier, plain

if TYPE_CHECKING:
    from ssmpi.core.topology import Topology
    from ssmpi.roles.trainer import Trainer


class Arrays(dict[str, np.ndarray]):
    """Arrays by name that were saved in one file; DataError for one that is not there."""

    def __init__(self, values: Mapping[str, np.ndarray], path: Path) -> None:
        super().__init__(values)
        self._path = path

    def __missing__(self, name: str) -> np.ndarray:
        raise DataError(
            f"{self._path} has no array '{name}', which this run needs to go on: another version of ssmpi wrote it. Go on with "
            "that version, or start anew"
        )

    def below(self, prefix: str) -> Arrays:
        """Those whose names begin so, without it."""
        found = {name.removeprefix(prefix): values for name, values in self.items() if name.startswith(prefix)}
        return Arrays(found, self._path)


@dataclass(frozen=True)
class Checkpoint:
    """One that is to be gone on from. ``state`` is what the function ``state`` gave."""

    folder: Path
    state: dict[str, Any]

    @classmethod
    def at(cls, folder: Path) -> Checkpoint:
        """The one in ``folder``."""
        return cls(folder, store.read_manifest(folder).state)

    def position(self, topology: Topology, batch_size: int) -> Position:
        """Where to go on; other numbers of trainers or threads share what nobody has trained on yet."""
        position, saved = Position.of_state(self.state["position"]), self.state["topology"]
        if (saved["trainers"], saved["threads"]) == (topology.trainers, topology.threads):
            return position
        return position.for_others(topology.trainers * topology.threads, batch_size)

    def arrays(self, trainer: int) -> Arrays:
        """What one trainer saved."""
        path = self.folder / f"trainer-{trainer:04}.h5"
        return Arrays(files.read(path), path)

    def earlier(self) -> Earlier:
        """What the earlier job had found."""
        first = self.arrays(0)
        arrays = {name: first[f"logbook/{name}"] for name in ("histogram", "sums")}
        return Earlier((self.state["logbook"], arrays), self.state["evaluations"])


def state(trainer: Trainer, position: Position) -> dict[str, Any]:
    """On the first trainer all that a checkpoint holds besides arrays, as JSON has it."""
    assert trainer.results
    config, reader, (numbers, _) = trainer.config, trainer.reader, trainer.results.logbook.state()
    return {
        "examples": int(numbers["examples"]),
        "expected_examples": reader.rows * config.data.passes,
        "topology": asdict(config.topology),
        "algorithm": config.sync.algorithm,
        "identity": identity(config, reader.manifest),
        "position": position.state(),
        "logbook": numbers,
        "evaluations": plain(trainer.results.evaluations),
        "checked": sorted(trainer.control.checked),
        KEY: Origin.of_data(reader.folder, reader.manifest).state(),
        "choice": asdict(trainer.choice.standing),
    }


def arrays(trainer: Trainer) -> dict[str, np.ndarray]:
    """A trainer's share of a checkpoint, by name."""
    found = {"replica": trainer.replica.vector}
    found |= {f"dense/{name}": values for name, values in trainer.optimizer.state().items()}
    found |= {f"sync/{name}": values for name, values in trainer.synchronizer.state().items()}
    found |= {f"held/{k}": held.values for k, held in enumerate(trainer.held) if held.values is not None}
    if trainer.progress.losses is not None:
        found["losses"] = np.array(trainer.progress.losses)
    if trainer.results:
        found |= {f"logbook/{name}": values for name, values in trainer.results.logbook.state()[1].items()}
    return found


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Fill replica, optimizer, algorithm and pulled rows. The replica is at the common model, the tables are loaded."""
    saved, topology = checkpoint.state["topology"], trainer.config.topology
    if saved["trainers"] == topology.trainers:
        own = checkpoint.arrays(trainer.world.index)
        for name, values in trainer.optimizer.state().items():
            values[:] = own[f"dense/{name}"]
    else:
        own = checkpoint.arrays(0)
        for name, values in trainer.optimizer.state().items():
            if trainer.world.index == 0:
                values[:] = mean(checkpoint, f"dense/{name}")
            wait(trainer.world.trainers.ibcast(values), trainer.config.waiting, "trainer 0 (to read a checkpoint)")
    if checkpoint.state["algorithm"] == trainer.config.sync.algorithm:
        trainer.synchronizer.resume(own.below("sync/"))
    if saved["trainers"] == topology.trainers:
        trainer.replica.vector[:] = own["replica"]
    if (saved["trainers"], saved["threads"]) == (topology.trainers, topology.threads):
        for thread, held in enumerate(trainer.held):
            held.values = own.get(f"held/{thread}")
        if trainer.progress.losses is not None and "losses" in own:
            trainer.progress.losses += own["losses"].tolist()


def mean(checkpoint: Checkpoint, name: str) -> np.ndarray:
    """Mean of one array over the trainers that saved it."""
    trainers = checkpoint.state["topology"]["trainers"]
    total = np.sum([checkpoint.arrays(k)[name].astype(np.float64) for k in range(trainers)], axis=0)
    return (total / trainers).astype(np.float32)
