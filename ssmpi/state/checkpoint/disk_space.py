"""Checks for free disk space before a save, and frees some by removing older checkpoints."""

from __future__ import annotations

from pathlib import Path

from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import MODEL
from ssmpi.state.checkpoint import disk
from ssmpi.state.checkpoint.pending_save import FullDiskError
from ssmpi.state.checkpoint.store import Store

SPARE = 1 << 20  # bytes, for manifests, results and logs


def make_room(store: Store, needed: int, path: Path) -> None:
    """Remove older checkpoints, never the newest, until ``path`` has room; FullDiskError if it has none even then."""
    needed += SPARE
    while (free := disk.free(store.folder.parent)) < needed:
        there = store.committed()
        if len(there) < 2:
            raise FullDiskError(
                f"{path}: {needed:,} bytes needed, {free:,} free: make room there, or choose another run.folder, and"
                " start again"
            )
        log.warning(f"{there[0]} is removed to make room for {path}: {needed:,} bytes needed, {free:,} free")
        store.retire(len(there) - 1)
        if store.committed() == there:
            raise FullDiskError(f"{path}: {needed:,} bytes needed, {free:,} free, and {there[0]} cannot be removed")


def check_room(run: Path, rows_bytes: int, keep: int, *, overwrite: bool) -> None:
    """Before training: FullDiskError if the model, with ``rows_bytes`` for all rows, does not fit even after all older
    checkpoints are removed; a warning if some will have to be. With ``overwrite`` the folder's present contents count
    as free.
    """
    there = Store(run).committed()
    saved = [sum(path.stat().st_size for path in folder.iterdir()) for folder in there]
    gone = sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) if overwrite else sum(saved[:-1])
    free = disk.free(next(path for path in (run, *run.absolute().parents) if path.is_dir()))
    needed = rows_bytes + SPARE
    if free + gone < needed:
        raise FullDiskError(
            f"{run / MODEL}: {needed:,} bytes needed when training is done, {free + gone:,} free: make room there, or"
            " choose another run.folder"
        )
    if (has := free + (gone if overwrite else sum(saved))) < (keep + 1) * needed:
        log.warning(
            f"{run}: {has:,} bytes free, {(keep + 1) * needed:,} needed for checkpoint.keep = {keep} and one that is"
            " being written: older ones will be removed earlier, and saves may fail"
        )
