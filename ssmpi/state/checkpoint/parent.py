"""The finished run that another one continues, on other data: what is taken of its model, and the record of which model
that was.

Its rows come first in widened tables: ids of an extended vocabulary are the old ones, then new ones. New rows have the
initial values of a new run over tables of the new size. In dynamic tables keys keep their rows, their sightings and
when they were seen. Dense parameters, estimates and the optimizers' state are taken too; algorithms and centers start
from that model, with the state of the same algorithm if there is some.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmpi.embedding.keyed_files import Continued
from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.errors import DamageError, DataError, json_problem
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.run_files import MANIFEST_NAME, MODEL, OPTIMIZER, PARENT
from ssmpi.state.checkpoint import disk, files, store
from ssmpi.state.checkpoint.data_origin import DataOrigin
from ssmpi.state.checkpoint.model_files import load_tables
from ssmpi.state.checkpoint.trainer_state import DENSE, joined

if TYPE_CHECKING:
    from ssmpi.embedding.table import Arena
    from ssmpi.state.checkpoint.trainer_state import LiveState

ALGORITHM = "algorithm"  # in the state of a model's manifest: whose state its optimizer file holds
REMEDY = "remove it; it is written again when the run resumes, from the model that is there then"


@dataclass(frozen=True)
class Parent:
    """The ``run`` that is continued (absolute path), after how many ``examples``, and the SHA-256 of the manifest of
    its ``model``, which has those of all files.
    """

    run: str
    examples: int
    model: str

    @classmethod
    def of(cls, run: Path) -> Parent:
        """That of a finished run; DataError if its model's manifest is missing or damaged."""
        state = store.read_manifest(run / MODEL).state
        return cls(str(run.resolve()), int(state.get("examples", 0)), checksum(run / MODEL))

    @classmethod
    def recorded(cls, run: Path) -> Parent | None:
        """The one that the run in this folder has recorded; None if it continues none. DamageError for a damaged
        record.
        """
        try:
            return cls(**parse_json((run / PARENT).read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError) as error:
            raise DamageError(run / PARENT, f"damaged: {json_problem(error)}", REMEDY) from error

    def record(self, run: Path) -> None:
        """Record it in the folder of the run that continues it."""
        atomic_file.write(run / PARENT, json.dumps(asdict(self), indent=1) + "\n")
        disk.sync_folder(run)

    @property
    def folder(self) -> Path:
        """The folder of its model."""
        return Path(self.run) / MODEL

    def check(self) -> None:
        """Raise DataError unless its model is still the recorded one."""
        try:
            same = checksum(self.folder) == self.model
        except OSError as error:
            raise DataError(
                f"{self.folder}: cannot be read ({error.strerror}), and this run continues it and has no checkpoint"
                " yet: put it back, or start a new run in another run.folder"
            ) from error
        if not same:
            raise DataError(
                f"{self.folder}: another model than the one this run began from (SHA-256 of its {MANIFEST_NAME} was"
                f" {self.model[:12]}...): put that one back, or start a new run in another run.folder"
            )

    def __str__(self) -> str:
        return f"the model of {self.run}, after {self.examples:,} examples"

    def as_json(self) -> dict[str, Any]:
        """For ``result.json``."""
        return asdict(self)


def checksum(model: Path) -> str:
    """SHA-256 of a model's manifest, which names the checksums of all its files."""
    return hashlib.sha256((model / MANIFEST_NAME).read_bytes()).hexdigest()


def load_rows(
    arena: Arena, model: Path, server: int = 0, check: Callable[[Path], None] = lambda path: None, *, fresh: bool
) -> None:
    """Fill the arena of PS ``server`` with the rows that ``model`` has; those that it does not have stay as they are,
    and with ``fresh`` all optimizer state. ``check`` is called with each file before it is read. DataError if rows are
    missing.
    """
    examples = int(store.read_manifest(model).state.get("examples", 0))
    load_tables(arena, model, server, check, Continued(examples, DataOrigin.of_model(model, "").cardinalities, fresh))


def restore(live: LiveState, model: Path, algorithm: str) -> None:
    """Give a trainer's dense optimizer the state that was saved with ``model``, and its synchronizer if that runs the
    same ``algorithm``. Nothing where there is none, as of SGD.
    """
    path, owned = model / OPTIMIZER, live.owned
    if not path.is_file():
        return
    saved = joined([files.read(path)], owned, path)
    for name, values in live.optimizer.items():
        values[:] = saved[f"{DENSE}{name}"]
    kept = saved.below("sync/")
    if kept and store.read_manifest(model).state.get(ALGORITHM) == algorithm:
        live.synchronizer.resume(kept)
