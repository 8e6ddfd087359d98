"""What a trainer saves in a checkpoint and restores from it. With an unchanged number of replicas it resumes exactly,
whichever trainers held or hold them; otherwise from the common model, with the mean of the dense optimizers' states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ssmpi.data.position import Position
from ssmpi.data.trained_rows import Deal
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.mpi.waiting import wait
from ssmpi.runtime.optimizer_options import STEP
from ssmpi.runtime.quality import Quality
from ssmpi.runtime.topology import Topology
from ssmpi.state.checkpoint import dense_vectors, files, store

if TYPE_CHECKING:
    from ssmpi.embedding.client import PrefetchedRows
    from ssmpi.model.parameters import OwnedParameters
    from ssmpi.runtime.mpi.waiting import WaitOptions
    from ssmpi.runtime.mpi.world import World
    from ssmpi.state.checkpoint.files import Dataset
    from ssmpi.sync import Synchronizer

SELECTION = "choice"  # the model selection's key in a checkpoint's state
DENSE = "dense/"  # before those of the dense optimizer's arrays
LOG = "logbook/"  # before the names of the metric logger's arrays


class RunLog(Protocol):
    """The metric logger, as far as saving and recovery need it; the first trainer has one."""

    def saved(self, line: dict[str, Any]) -> None:
        """Write what saving a checkpoint cost, or that it failed."""

    def recovered(self, recovery: dict[str, Any]) -> None:
        """Write the line of a recovery."""

    def pause(self, seconds: float) -> None:
        """Training stood still for this long."""

    def say(self, text: str) -> None:
        """Print a line."""


class Arrays(dict[str, np.ndarray]):
    """The arrays of one file by name; DataError for a missing one."""

    def __init__(self, values: Mapping[str, np.ndarray], path: Path) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, name: str) -> np.ndarray:
        raise DataError(
            f"{self.path} has no array '{name}', which this run needs to resume: another version of ssmpi wrote it."
            " Resume with that version, or start over"
        )

    def below(self, prefix: str) -> Arrays:
        """The arrays whose names start with a prefix, with the prefix removed."""
        found = {name.removeprefix(prefix): values for name, values in self.items() if name.startswith(prefix)}
        return Arrays(found, self.path)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to resume from. ``state`` is what its manifest says of the run."""

    folder: Path
    state: dict[str, Any]

    @classmethod
    def at(cls, folder: Path) -> Checkpoint:
        """The one in ``folder``."""
        return cls(folder, store.read_manifest(folder).state)

    @property
    def topology(self) -> Topology:
        """That of the job that saved it; older ones had no groups."""
        return Topology(**self.state["topology"])

    def deal(self, topology: Topology, batch_size: int) -> Deal:
        """The deal to resume from."""
        return Deal(0, self.state["examples"], self.position(topology, batch_size))

    def position(self, topology: Topology, batch_size: int) -> Position:
        """The position to resume from; other trainers or threads than before redistribute the remaining rows."""
        position = Position.of_state(self.state["position"])
        if self.topology.same_lanes(topology):
            return position
        return position.for_others(topology.lanes, batch_size)

    def file(self, trainer: int) -> Arrays:
        """What one trainer saved."""
        path = self.folder / f"trainer-{trainer:04}.h5"
        return Arrays(files.read(path), path)

    def arrays(self, replica: int, owned: OwnedParameters) -> Arrays:
        """What the trainers of a replica saved, in vectors of what is ``owned`` now."""
        group = self.topology.group
        members = [self.file(replica * group + member) for member in range(group)]
        return joined(members, owned, members[0].path)

    def scored(self) -> list[Quality]:
        """The quality of all rows scored before; the first trainer counts it as its own."""
        first = self.file(0)
        return [Quality(**{name: first[f"{LOG}{name}"] for name in ("histogram", "sums")})]


@dataclass(frozen=True)
class Snapshot:
    """What is to be written of a paused trainer: the ``dense`` weights of the common model, ``nbytes`` of that model on
    disk with all rows of the tables, and on the first trainer the ``state`` for the manifest. Of a finished model also
    the state of the dense ``optimizer``, with which another run may continue; of a checkpoint this trainer's own
    ``arrays``, and the ``examples`` of all trainers that it knows of.
    """

    dense: Sequence[Dataset]
    nbytes: int
    state: dict[str, Any]
    optimizer: Sequence[Dataset] = ()
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    examples: int = 0


@dataclass(frozen=True)
class LiveState:
    """The live state of a trainer: a snapshot takes it, a resumed job restores it. ``owned`` are the parameters in the
    weights of the ``synchronizer``, ``optimizer`` the arrays of the dense optimizer, ``prefetched`` the rows that a
    paused thread has pulled already.
    """

    owned: OwnedParameters
    optimizer: Mapping[str, np.ndarray]
    synchronizer: Synchronizer
    prefetched: Sequence[PrefetchedRows]
    losses: list[float] | None

    def arrays(self) -> dict[str, np.ndarray]:
        """A trainer's share of a checkpoint, by name."""
        found = {"replica": self.synchronizer.weights}
        found |= {f"{DENSE}{name}": values for name, values in self.optimizer.items()}
        found |= {f"sync/{name}": values for name, values in self.synchronizer.state().items()}
        found |= {f"held/{k}": rows.values for k, rows in enumerate(self.prefetched) if rows.values is not None}
        if self.losses is not None:
            found["losses"] = np.array(self.losses)
        return dense_vectors.split(found, self.owned)


def joined(members: Sequence[Mapping[str, np.ndarray]], owned: OwnedParameters, path: Path) -> Arrays:
    """``dense_vectors.join`` of the arrays of all ``members`` of a replica, and the steps of its optimizer, which they
    count alike; ``path`` is for messages.
    """
    steps = {name: values for name, values in members[0].items() if name == f"{DENSE}{STEP}"}
    return Arrays(steps | dense_vectors.join(members, owned, path), path)


def restore(live: LiveState, checkpoint: Checkpoint, world: World, algorithm: str, waiting: WaitOptions) -> None:
    """Restore replica, optimizer, algorithm and pulled rows. Before, the replica must hold the common model, and the
    tables must be loaded.
    """
    topology, owned = world.topology, live.owned
    same = checkpoint.topology.replicas == topology.replicas
    saved = checkpoint.arrays(topology.place_of(world.index).replica if same else 0, owned)
    for name, values in live.optimizer.items():
        if same:
            values[:] = saved[f"{DENSE}{name}"]
            continue
        if world.replicas.rank == 0:
            values[:] = mean(checkpoint, f"{DENSE}{name}", owned)
        wait(world.replicas.ibcast(values), waiting, f"{world.replicas.names[0]} (to read a checkpoint)")
    if checkpoint.state["algorithm"] == algorithm:
        live.synchronizer.resume(saved.below("sync/"))
    if same:
        live.synchronizer.weights[:] = saved["replica"]
    if checkpoint.topology.same_lanes(topology):
        own = checkpoint.file(world.index)
        for thread, rows in enumerate(live.prefetched):
            rows.values = own.get(f"held/{thread}")
        if live.losses is not None and "losses" in own:
            live.losses.extend(own["losses"].tolist())


def mean(checkpoint: Checkpoint, name: str, owned: OwnedParameters) -> np.ndarray:
    """Mean of one array over the replicas that were saved."""
    replicas = checkpoint.topology.replicas
    total = np.sum([checkpoint.arrays(k, owned)[name].astype(np.float64) for k in range(replicas)], axis=0)
    return (total / replicas).astype(np.float32)
