"""Loads the newest save of each row of one embedding PS: from a checkpoint, or from the incremental saves of the PS
(``store``). Rows that were never saved get their initial values, a function of the seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ssmpi.embedding.table import KEYS, ROWS, Arena
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import checkpoint_number
from ssmpi.state.checkpoint import files, store
from ssmpi.state.checkpoint.data_origin import DataOrigin
from ssmpi.state.checkpoint.model_files import load_tables
from ssmpi.state.checkpoint.rows.row_store import RowStore, path_of
from ssmpi.state.checkpoint.store import CheckpointManifest
from ssmpi.state.memory_needs import hot_memory

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.runtime.mpi.rank_memory import RankMemory
    from ssmpi.runtime.mpi.shared_memory import Memory
    from ssmpi.runtime.topology import Role

SEED = "the initial rows"


class Unsaved(NamedTuple):
    """Accesses of rows that are not saved: ``left`` at the last save, NaN if not counted, after ``samples`` of all
    trainers; each later sample adds ``per_sample``.
    """

    left: float
    samples: int
    per_sample: float

    def lost(self, covered: int, now: int) -> float:
        """CPR's lost updates if the rows are lost after ``now`` samples. Accesses up to ``covered`` do not count: the
        rows were reloaded then, if that is later than their newest save.
        """
        left = 0.0 if covered > self.samples else self.left
        return left + (now - max(covered, self.samples)) * self.per_sample


@dataclass(frozen=True)
class Reloaded:
    """The number of ``rows`` loaded, their ``source`` in words, and how many ``seconds`` that took. ``samples`` of all
    trainers had been trained on when the newest of what PLS counts as saves of all rows was taken; 0 for initial rows.
    """

    samples: int
    rows: int
    source: str
    unsaved: Unsaved
    seconds: float = 0.0


def arena_in(
    memory: RankMemory, config: Config, index: int, roles: Sequence[Role], model: Path | None = None
) -> tuple[Arena, Memory, Memory | None]:
    """The rows of embedding PS ``index`` in its memory, surviving or initial ones, and the memory of rows and, with
    keyed features, of their keys. The tables are those of a saved ``model``, or of the run's data. The host has ranks
    of these ``roles``.
    """
    setting, shared = config.data.folder, config.run.shared_memory
    origin = DataOrigin.of_model(model, setting) if model else DataOrigin.of_data(Path(setting))
    placement = config.placement(origin)
    hot = () if memory.holds(ROWS) else hot_memory(config, placement, index, roles)
    rows = memory.part(ROWS, shared=shared, folder=config.embedding.storage, hot=hot)
    keys = memory.part(KEYS, shared=shared) if placement.keyed else None
    return Arena(config.rows, placement, index, config.run.seed, rows, keys), rows, keys


def restore(arena: Arena, index: int, run: Path, checkpoints: Sequence[Path], timeline: int) -> Reloaded:
    """Set every row of the new arena of embedding PS ``index`` to its newest save; every byte read is verified.
    ``checkpoints`` are committed ones, newest first, of any number of embedding PSs. Damaged files are skipped with a
    warning, in favor of older saves. DataError if there are checkpoints and all of them are damaged.
    """
    row_store = RowStore(path_of(run, index), arena, timeline)
    try:
        saved = row_store.load()
    except DataError as error:
        log.warning(f"{error}. Its rows come from a checkpoint instead")
        saved = None
    base = saved.base.header.checkpoint if saved and not arena.keyed else -1  # keys are sighted in checkpoints alone
    per_sample = arena.placement.lookups_of(index)
    left, newest = saved.unsaved if saved else (0.0, 0)
    loaded, taken, source = 0, 0, SEED
    for checkpoint in checkpoints:
        try:
            manifest = store.read_manifest(checkpoint)
            if (number := checkpoint_number(checkpoint)) > base:
                load_tables(arena, checkpoint, index, partial(verify, manifest))
                loaded, taken, source = number, manifest.state["examples"], checkpoint.name
            break
        except DataError as error:
            if checkpoint == checkpoints[-1] and not saved:
                raise
            log.warning(f"{checkpoint.name} cannot be used: {error}")
    if saved and source == SEED:
        row_store.restore(saved)
        return Reloaded(saved.newest.covered, arena.used, saved.path.name, Unsaved(left, newest, per_sample))
    if saved and row_store.restore(saved, loaded):
        since = min(left, max(0, newest - taken) * per_sample)  # counted since saves older than the checkpoint
        unsaved = Unsaved(left if math.isnan(left) else since, newest, per_sample)
        return Reloaded(saved.covered_after(loaded, taken), arena.used, f"{source} and {saved.path.name}", unsaved)
    return Reloaded(taken, arena.used, source, Unsaved(0.0, taken, per_sample))


def verify(manifest: CheckpointManifest, path: Path) -> None:
    """Raise DataError if a file does not match its manifest."""
    for entry in manifest.files:
        if entry.file == path.name:
            files.verify(path.parent, entry)
