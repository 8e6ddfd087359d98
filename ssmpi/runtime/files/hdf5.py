"""Reads HDF5 files that may come from others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import h5py

from ssmpi.runtime.errors import DataError, UserError

# What reading a damaged file raises, or one that has a group in place of a data set.
UNREADABLE = (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError)
DEPTH = 8  # of groups


@contextlib.contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Yield an open file, all of whose values are in it; OSError if some are elsewhere: HDF5 would read other files."""
    with h5py.File(path, "r", locking=False) as file:
        _check(file, DEPTH)
        yield file


@contextlib.contextmanager
def saved_model(path: Path) -> Iterator[h5py.File]:
    """The same of a saved model, until the block ends; DataError if it is damaged."""
    try:
        with opened(path) as file:
            yield file
    except UserError:
        raise
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read ({error}); the saved model is damaged") from error


def _check(group: h5py.Group, depth: int) -> None:
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink) or not depth:
            raise OSError(f"{group.name}/{name} is a link")
        item = group[name]
        if isinstance(item, h5py.Group):
            _check(item, depth - 1)
        elif isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
            raise OSError(f"the values of {item.name} are in another file")
