"""``ssmpi export --since`` writes what has changed since an earlier model, and ``ssmpi apply`` puts it into the export
of that one, for serving: the earlier export with the deltas since is that of the newest model, to the bit.

Both models are on disk, so changed rows are found by comparing the bits of each table in turn, in the memory of two of
them. That is exact by construction, for any two models, and needs nothing while training; the trackers of priority
saves sample, decay and forget.

A delta has the dense parameters whole. Of a table ``T`` it has ``T.ids`` int64 (changed,), ascending, and ``T.values``
float32 (changed, width) of rows that are other or new. Its metadata names the model it is of (``model``), the one
before (``base``), by the SHA-256 of their manifests, and the rows of each table (``rows``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssmpi.checkpoint import model_files, saved_network
from ssmpi.checkpoint.data_origin import DataOrigin
from ssmpi.checkpoint.parent import checksum
from ssmpi.checkpoint.store import Store
from ssmpi.config import Config, load
from ssmpi.core.errors import DataError, json_problem
from ssmpi.files import atomic_file
from ssmpi.files.run_files import DELTA, MANIFEST_NAME, RUN_FILE
from ssmpi.tools import export, tensor_files
from ssmpi.tools.tensor_files import BEGIN, MODEL_KEY

BASE, ROWS = "base", "rows"  # in a delta's metadata
IDS, VALUES = ".ids", ".values"


def export_since(run: Path, since: str, file: Path | None) -> int:
    """Write what the model of ``run`` has changed ``since``: a checkpoint of this run by its name, or the folder of any
    checkpoint, model or run.
    """
    folder, base, target = export.newest(run), earlier(run, since), file or run / DELTA
    atomic_file.check_replaceable(target, BEGIN)
    with atomic_file.whole(target) as beside:
        config, of_base = (checked(run, each) for each in (folder, base))
        tensor_files.refuse_keys(config, folder)
        before, now = (DataOrigin.of_model(each, config.data.folder).cardinalities for each in (base, folder))
        if len(before) != len(now) or any(old > new for old, new in zip(before, now, strict=True)):
            raise DataError(f"{base}: has tables, or rows of them, that {folder} has not: export the whole model")
        arrays, rows = export.dense_tensors(config, folder), dict[str, int]()
        for table in range(len(now)):
            found = export.table_tensors(config, table, model_files.read_table(folder, table))
            old = export.table_tensors(of_base, table, model_files.read_table(base, table))
            for name, values in found.items():
                arrays |= changed(name, old.get(name), values, base)
                rows[name] = len(values)
        about = {MODEL_KEY: checksum(folder), BASE: checksum(base), ROWS: json.dumps(rows)}
        tensor_files.write_safetensors(arrays, beside, about)
    count = sum(len(values) for name, values in arrays.items() if name.endswith(IDS))
    print(f"{count:,} of {sum(rows.values()):,} rows, {target.stat().st_size / 1e6:,.1f} MB in {target}, since {base}")
    return 0


def checked(run: Path, folder: Path) -> Config:
    """The settings of ``run`` with the network of the model in ``folder``, all of which is intact and can be written as
    tensors.
    """
    model_files.check_in_one_process(folder)
    config = saved_network.of_model(load(run / RUN_FILE), folder)
    export.check_operators(config, folder)
    return config


def earlier(run: Path, since: str) -> Path:
    """The folder of the model that ``since`` means; DataError if there is none."""
    folder = Path(since)
    if (folder / MANIFEST_NAME).is_file():
        return folder
    if (folder / RUN_FILE).is_file():
        return model_files.find(folder)
    if folder.is_dir():
        raise DataError(f"{folder}: neither a run, nor a checkpoint or model: no {RUN_FILE} or {MANIFEST_NAME} in it")
    return Store(run).named(since)


def changed(name: str, old: np.ndarray | None, new: np.ndarray, base: Path) -> dict[str, np.ndarray]:
    """The rows of ``new`` that differ in a bit from those of ``old``, or that it does not have."""
    if old is None or old.shape[1] != new.shape[1]:
        raise DataError(f"{base}: its {name} has rows of another size: export the whole model")
    bits = [np.ascontiguousarray(values).view(np.uint32) for values in (old, new)]
    same = len(old)
    ids = np.concatenate([np.flatnonzero((bits[0] != bits[1][:same]).any(axis=1)), np.arange(same, len(new))])
    return {f"{name}{IDS}": ids.astype(np.int64), f"{name}{VALUES}": np.ascontiguousarray(new[ids])}


class TensorFile(NamedTuple):
    """A file of safetensors: its arrays by name and its metadata."""

    path: Path
    arrays: dict[str, np.ndarray]
    about: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> TensorFile:
        """DataError if it is none."""
        library = tensor_files.safetensors()
        try:
            with library.safe_open(path, framework="numpy") as file:
                return cls(path, {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {})  # noqa: SIM118 - no mapping
        except (OSError, library.SafetensorError) as error:
            raise DataError(
                f"{path}: not a readable file of safetensors ({error}): name what 'ssmpi export' wrote"
            ) from None


def apply(base: Path, deltas: Sequence[Path], target: Path) -> int:
    """Write the export ``base`` with all ``deltas``, in order, to ``target``. DataError, and nothing is written, if one
    is of another base.
    """
    atomic_file.check_replaceable(target, BEGIN)
    with atomic_file.whole(target) as beside:
        found = TensorFile.read(base)
        if BASE in found.about or MODEL_KEY not in found.about:
            what = (
                "a delta" if BASE in found.about else "made by an earlier version, so that nobody knows of which model"
            )
            raise DataError(f"{base}: {what}: name an export of a whole model ('ssmpi export --format safetensors')")
        for path in deltas:
            found = applied(found, TensorFile.read(path))
        tensor_files.write_safetensors(found.arrays, beside, {MODEL_KEY: found.about[MODEL_KEY]})
    print(f"{len(found.arrays)} tensors, {target.stat().st_size / 1e6:,.1f} MB in {target}")
    return 0


def applied(before: TensorFile, delta: TensorFile) -> TensorFile:
    """A whole model with one delta."""
    path, about = delta.path, delta.about
    if BASE not in about:
        raise DataError(f"{path}: no delta: name what 'ssmpi export --since' wrote")
    if about[BASE] != before.about[MODEL_KEY]:
        raise DataError(
            f"{path}: what has changed since model {about[BASE][:12]}..., and {before.path} has model"
            f" {before.about[MODEL_KEY][:12]}...: name all deltas in between, in order, or export the whole"
        )
    try:
        return TensorFile(path, dict(merged(before, delta, json.loads(about[ROWS]))), about)
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise DataError(f"{path}: damaged: {json_problem(error)}: write it again") from error


def merged(before: TensorFile, delta: TensorFile, rows: dict[str, int]) -> Any:
    """Names and arrays of the model after a delta."""
    for name, count in rows.items():
        old, values = before.arrays[name], delta.arrays[f"{name}{VALUES}"]
        whole = np.empty((count, values.shape[1]), np.float32)
        whole[: len(old)] = old
        whole[delta.arrays[f"{name}{IDS}"]] = values
        yield name, whole
    yield from ((name, values) for name, values in delta.arrays.items() if not name.endswith((IDS, VALUES)))
