"""Finds and loads a model: ``dense.h5``, one ``embedding-NNNN.h5`` a PS, and their manifest. A checkpoint holds one
too.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from ssmpi.embedding.keyed_files import Continued
from ssmpi.embedding.precision import converted
from ssmpi.embedding.table import Arena, check_rows
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files import hdf5
from ssmpi.runtime.files.run_files import MANIFEST_NAME, MODEL
from ssmpi.runtime.row_layout import RowLayout
from ssmpi.state.checkpoint import disk, store

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.world import Job

DENSE = "dense.h5"


def find(run: Path) -> Path:
    """The folder of a run's finished model, or else of its newest checkpoint; DataError if there is neither, or if the
    manifest is damaged.
    """
    there = [*store.Store(run).committed(), *([run / MODEL] if (run / MODEL / MANIFEST_NAME).is_file() else [])]
    if not there:
        raise DataError(
            f"{run}: no complete model here: it was removed, or the run did not reach a save. Train again, or name "
            "another run folder"
        )
    tables(there[-1])
    return there[-1]


def check(job: Job, folder: Path, advice: Callable[[], str] | None = None) -> None:
    """Verify the files of a model against its manifest, a share on every rank; if one is damaged all ranks end with one
    message, which ends with ``advice`` (default: ``remedy``).
    """
    errors = [error for error in job.gather(store.find_error(folder, job.rank, job.size)) if error]
    job.agree(lambda: _refuse(errors, advice or (lambda: remedy(folder))))


def check_in_one_process(folder: Path) -> None:
    """The same in one process."""
    error = store.find_error(folder, 0, 1)
    _refuse([error] if error else [], lambda: remedy(folder))


def _refuse(errors: list[str], advice: Callable[[], str]) -> None:
    if errors:
        raise DataError(f"{errors[0]}. {advice()}")


def remedy(folder: Path) -> str:
    """What to do about a damaged model or checkpoint."""
    if folder.name == MODEL:
        return "Train the model again, or restore an intact copy"
    run = folder.parent.parent
    return f"'ssmpi launch --resume {run} --checkpoint whole' resumes from the newest undamaged one, if there is one"


def tables(folder: Path) -> list[Path]:
    """The files of embedding rows that a model's manifest names."""
    try:
        names = sorted(entry.file for entry in store.read_manifest(folder).files)
    except DataError as error:
        raise DataError(f"{error}. {remedy(folder)}") from error
    if DENSE not in names:
        raise DataError(f"{folder / MANIFEST_NAME}: damaged: it names no {DENSE}. {remedy(folder)}")
    return [folder / name for name in names if name.startswith("embedding-")]


def read_table(folder: Path, table: int, count: int, layout: RowLayout) -> np.ndarray:
    """All ``count`` rows of one table of a saved model, float32 (rows, width), whatever placement saved it; DataError
    if some are missing, or its files cannot be read or have others.
    """
    rows = np.full((count, layout.width), np.nan, np.float32)
    for path in tables(folder):
        with saved_parts(path, table) as parts:
            for group in parts:
                weights = group["weights"]
                first, stride, saved = (int(weights.attrs[name]) for name in ("first", "stride", "cardinality"))
                check_rows(path, weights, layout)
                if saved != count or not 0 <= first < stride or len(weights) != len(range(first, count, stride)):
                    raise DataError(f"{path}: table {table} has {saved:,} rows, this model {count:,}. {remedy(folder)}")
                rows[first::stride] = converted(weights[:], rows.dtype)
    check_numbers(folder, table, rows)
    return rows


def check_numbers(folder: Path, table: int, rows: np.ndarray) -> None:
    """Raise DataError if a value of a table is not a number, or was not there."""
    if not np.isfinite(rows).all():
        raise DataError(
            f"{folder}: rows of table {table} are missing, or not numbers: a file is gone or damaged. {remedy(folder)}"
        )


@contextlib.contextmanager
def saved_parts(path: Path, table: int) -> Iterator[list[h5py.Group]]:
    """The parts of one table in an open file of rows; DataError if it cannot be read."""
    with hdf5.saved_model(path) as saved:
        yield [each for each in saved.values() if each["weights"].attrs["table"] == table]


def missing_rows(folder: Path, table: int) -> DataError:
    """What to say of a table that is not whole."""
    return DataError(f"{folder}: rows of table {table} are missing: a file is. {remedy(folder)}")


def move_into_place(new: Path, place: Path) -> None:
    """Move a complete model into place; the old one is removed after that."""
    old = place.with_name(f".{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        disk.rename(place, old)
    disk.rename(new, place)
    disk.sync_folder(place.parent)  # before a checkpoint or the result refers to it
    shutil.rmtree(old, ignore_errors=True)


def load_tables(
    arena: Arena, folder: Path, server: int = 0, check: Callable[[Path], None] = lambda path: None,
    continued: Continued | None = None,
) -> None:  # fmt: skip
    """Fill the arena of PS ``server`` from saved parts, whatever placement saved them; DataError if rows are missing.
    The file of this PS is read first, and no more than needed: with an unchanged number of PSs only that one. ``check``
    is called with each file before it is read. What the model of a run that is ``continued`` does not have stays as it
    is.
    """
    loading, files = arena.loading(continued), tables(folder)
    first = server % max(1, len(files))
    for path in [*files[first:], *files[:first]]:
        if loading.done:
            break
        check(path)
        arena.load(path, loading)
    if not loading.done:
        raise DataError(
            f"{folder}: saved parts lack {loading} needed here: a file is missing, or the data folder is not the one "
            "that the model was trained on"
        )
