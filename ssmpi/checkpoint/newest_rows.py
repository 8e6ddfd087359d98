"""The newest save of each row of one embedding PS, wherever it is: in a checkpoint, or in what the PS saves by itself
beside training (``row_store``). Rows that were saved nowhere are the initial ones, a function of the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ssmpi.checkpoint import files, store
from ssmpi.checkpoint.model_files import load_tables
from ssmpi.checkpoint.row_store import RowStore, path_of
from ssmpi.checkpoint.store import FileManifest
from ssmpi.core.errors import DataError
from ssmpi.core.log import log
from ssmpi.embedding.table import Arena

SEED = "the initial rows"


@dataclass(frozen=True)
class Reloaded:
    """How many ``rows`` came from where: ``source`` in words. ``samples`` of all trainers had been trained on when the
    newest state that covers all of them was taken; 0 for initial rows. Some may be newer than that.
    """

    samples: int
    rows: int
    source: str


def restore(arena: Arena, index: int, run: Path, checkpoints: Sequence[Path], timeline: int) -> Reloaded:
    """Give every row of a fresh arena, that of embedding PS ``index``, the values of its newest save; every byte that
    is read is checked. ``checkpoints`` are committed ones, the newest first, of any number of embedding PSs.

    What is damaged is passed over with a warning: older saves are then the newest ones. DataError if there are
    checkpoints and all of them are damaged.
    """
    row_store = RowStore(path_of(run, index), arena, timeline)
    try:
        saved = row_store.load()
    except DataError as error:
        log.warning(f"{error}. Its rows come from a checkpoint instead")
        saved = None
    rows, base = len(arena.weights), saved.base.header.samples if saved else -1
    taken, source = 0, SEED
    for checkpoint in checkpoints:
        try:
            manifest = store.read_manifest(checkpoint)
            if manifest.state["examples"] > base:
                load_tables(arena, checkpoint, index, partial(_verify, manifest))
                taken, source = manifest.state["examples"], checkpoint.name
            break
        except DataError as error:
            if checkpoint == checkpoints[-1] and not saved:
                raise
            log.warning(f"{checkpoint.name} cannot be used: {error}")
    if saved and source == SEED:
        row_store.restore(saved)
        return Reloaded(base, rows, saved.path.name)
    if saved and row_store.restore_after(saved, taken):
        source = f"{source} and {saved.path.name}"
    return Reloaded(taken, rows, source)


def _verify(manifest: FileManifest, path: Path) -> None:
    """Raise DataError if a file is not as its manifest says."""
    for entry in manifest.files:
        if entry.file == path.name:
            files.verify(path.parent, entry)
