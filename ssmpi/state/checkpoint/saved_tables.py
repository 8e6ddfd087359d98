"""Whole tables of a saved model, for other programs: in an order that no placement changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ssmpi.embedding.key_kernels import RESERVED
from ssmpi.embedding.precision import converted
from ssmpi.embedding.table import KEYS, check_rows
from ssmpi.runtime.errors import DataError
from ssmpi.state.checkpoint import model_files, store
from ssmpi.state.checkpoint.data_origin import DataOrigin

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.runtime.row_layout import RowLayout


class TableRows(NamedTuple):
    """``values`` float32 (rows, width) by id. A dynamic table has ``keys`` int64 (n,), ascending: its ``values`` are
    the rows of the reserved ids, 0 (missing) and 1 (shared by all other keys), then those of the keys.
    """

    values: np.ndarray
    keys: np.ndarray | None = None


def with_room(config: Config, model: Path, before: Config) -> Config:
    """``config`` with ``keys`` of dynamic tables for all that ``model`` holds: earlier versions let several PSs hold
    more together. A limit that is lower than ``before``, in the model's run, stays.
    """
    options, was = config.embedding.dynamic, before.embedding.dynamic
    counts = {feature: each["keys"] for feature, each in store.read_manifest(model).state.get(KEYS, {}).items()}
    found = options.for_keys({name: n for name, n in counts.items() if options.of(name).keys >= was.of(name).keys})
    if found == options:
        return config
    return dataclasses.replace(config, embedding=dataclasses.replace(config.embedding, dynamic=found))


def read_tables(config: Config, folder: Path) -> dict[int, TableRows]:
    """All tables of the model in ``folder``, which ``config`` fits, by number; they must fit in memory. DataError if
    rows are missing or a file cannot be read.
    """
    origin = DataOrigin.of_model(folder, config.data.folder)
    return {table: read(config, folder, origin, table) for table in range(len(origin.cardinalities))}


def read(config: Config, folder: Path, origin: DataOrigin, table: int) -> TableRows:
    """One table of the model in ``folder``, which has this ``origin``."""
    if table in origin.features.key_columns:
        return read_keyed(folder, table, config.rows.layout)
    return TableRows(model_files.read_table(folder, table, origin.cardinalities[table], config.rows.layout))


def read_keyed(folder: Path, table: int, layout: RowLayout) -> TableRows:
    """A dynamic table."""
    reserved, keys, rows = dict[int, np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    left: set[int] | None = None  # stripes not read yet; None if nothing is known
    for path in model_files.tables(folder):
        with model_files.saved_parts(path, table) as parts:
            for group in parts:
                first, stride = (int(group["weights"].attrs[name]) for name in ("first", "stride"))
                left = (set(range(stride)) if left is None else left) - {first}
                check_rows(path, group["weights"], layout)
                weights, fixed = converted(group["weights"][:], np.float32), range(first, RESERVED, stride)
                reserved |= dict(zip(fixed, weights[: len(fixed)], strict=True))
                keys.append(group["keys"][:])
                rows.append(weights[len(fixed) :])
                if len(keys[-1]) != len(rows[-1]) or keys[-1].dtype != np.int64:
                    raise model_files.missing_rows(folder, table)
    if left != set() or reserved.keys() != set(range(RESERVED)):
        raise model_files.missing_rows(folder, table)
    found, order = np.unique(np.concatenate(keys), return_index=True)
    values = np.concatenate([[reserved[id_] for id_ in range(RESERVED)], np.concatenate(rows)[order]])
    model_files.check_numbers(folder, table, values)
    if len(found) != sum(map(len, keys)):
        raise DataError(f"{folder}: a key of table {table} has several rows. {model_files.remedy(folder)}")
    return TableRows(values, found)
