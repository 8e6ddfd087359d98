"""Saves, finds and loads a model: ``dense.h5``, one ``embedding-NNNN.h5`` a PS, and ``whole``, written last."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ssmpi.embedding.table import Arena
from ssmpi.errors import DataError

if TYPE_CHECKING:
    from ssmpi.model.replica import Replica


class CanSave(Protocol):
    """Tables, here or on servers."""

    def save(self, folder: Path) -> None:
        """Write all rows into ``folder``."""


def save(folder: Path, replica: Replica, vector: np.ndarray, tables: CanSave) -> None:
    """Write a model beside its place and put it there when it is whole; the one that was there goes only then."""
    beside, old = folder.with_name(f".{folder.name}.tmp"), folder.with_name(f".{folder.name}.old")
    for leftover in (beside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    beside.mkdir(parents=True)
    replica.save(beside / "dense.h5", vector)
    tables.save(beside)
    (beside / "whole").touch()
    if folder.exists():
        folder.rename(old)
    beside.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def check_whole(folder: Path) -> None:
    """Raise DataError unless ``folder`` holds a model that was saved to the end."""
    if not (folder / "whole").is_file():
        raise DataError(
            f"{folder}: no whole model here; its run did not reach a save. Train it again, or name another run folder"
        )


def load_tables(arena: Arena, folder: Path) -> None:
    """Fill an arena from every saved part, whatever placement saved them; DataError if rows are missing."""
    check_whole(folder)
    taken = 0
    for path in sorted(folder.glob("embedding-*.h5")):
        try:
            taken += arena.load(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error}); the saved model is damaged") from error
    if taken != len(arena.weights):
        raise DataError(
            f"{folder}: saved parts hold {taken:,} of the {len(arena.weights):,} rows wanted here: a file is missing, "
            "or the data folder is not the one that the model was trained on"
        )
