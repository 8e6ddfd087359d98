"""Loads the newest save of each row of one embedding PS: from a checkpoint, or from the incremental saves of the PS
(``row_store``). Rows that were never saved get their initial values, a function of the seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ssmpi.checkpoint import files, store
from ssmpi.checkpoint.model_files import load_tables
from ssmpi.checkpoint.row_store import RowStore, path_of
from ssmpi.checkpoint.start import Unsaved
from ssmpi.checkpoint.store import FileManifest
from ssmpi.core.errors import DataError
from ssmpi.embedding.table import Arena
from ssmpi.files.log import log
from ssmpi.files.run_files import checkpoint_number

SEED = "the initial rows"


@dataclass(frozen=True)
class Reloaded:
    """The number of ``rows`` loaded and their ``source`` in words. ``samples`` of all trainers had been trained on when
    the newest of what PLS counts as saves of all rows was taken; 0 for initial rows.
    """

    samples: int
    rows: int
    source: str
    unsaved: Unsaved


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
    rows, base = len(arena.weights), saved.base.header.checkpoint if saved else -1
    per_sample = sum(1.0 / part.stride for part in arena.parts)  # each table is looked up once
    left, newest = saved.unsaved if saved else (0.0, 0)
    loaded, taken, source = 0, 0, SEED
    for checkpoint in checkpoints:
        try:
            manifest = store.read_manifest(checkpoint)
            if (number := checkpoint_number(checkpoint)) > base:
                load_tables(arena, checkpoint, index, partial(_verify, manifest))
                loaded, taken, source = number, manifest.state["examples"], checkpoint.name
            break
        except DataError as error:
            if checkpoint == checkpoints[-1] and not saved:
                raise
            log.warning(f"{checkpoint.name} cannot be used: {error}")
    if saved and source == SEED:
        row_store.restore(saved)
        return Reloaded(saved.newest.covered, rows, saved.path.name, Unsaved(left, newest, per_sample))
    if saved and row_store.restore_after(saved, loaded):
        since = min(left, max(0, newest - taken) * per_sample)  # counted since saves older than the checkpoint
        unsaved = Unsaved(left if math.isnan(left) else since, newest, per_sample)
        return Reloaded(saved.covered_after(loaded, taken), rows, f"{source} and {saved.path.name}", unsaved)
    return Reloaded(taken, rows, source, Unsaved(0.0, taken, per_sample))


def _verify(manifest: FileManifest, path: Path) -> None:
    """Raise DataError if a file does not match its manifest."""
    for entry in manifest.files:
        if entry.file == path.name:
            files.verify(path.parent, entry)
