"""``ssmpi export --since`` writes the changes since an earlier model, and ``ssmpi apply`` applies them to that model's
export, for serving. The result equals the export of the newest model, to the bit.

Both models are on disk, so changed rows are found by comparing the bits of each table in turn, in the memory of two of
them. That is exact by construction, for any two models, and needs nothing while training; the trackers of priority
saves sample, decay and forget.

A delta has the dense parameters whole. Of a tensor ``T`` of a static table it has ``T.ids`` int64 (changed,),
ascending, and ``T.values`` float32 (changed, width) of rows that are other or new; ``keyed_delta`` says what it has of
dynamic tables. Its metadata names the model it is of (``model``), the one before (``base``), by the SHA-256 of their
manifests, the rows of each static tensor (``rows``), and the tensors of dynamic tables by the name of their keys
(``keyed``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssmpi.config import Config, load
from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.errors import ContentError, DataError, json_problem
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.files.run_files import DELTA, MANIFEST_NAME, RUN_FILE
from ssmpi.state.checkpoint import model_files, saved_network, saved_tables
from ssmpi.state.checkpoint.data_origin import DataOrigin
from ssmpi.state.checkpoint.parent import checksum
from ssmpi.state.checkpoint.store import Store
from ssmpi.tools import export, keyed_delta, tensor_files
from ssmpi.tools.keyed_delta import CHANGED, GONE, VALUES, check_ascending, check_values
from ssmpi.tools.tensor_files import CHECKSUM, MODEL_KEY, SAFETENSORS

BASE, ROWS, KEYED = "base", "rows", "keyed"  # in a delta's metadata
IDS = ".ids"


def export_since(run: Path, since: str, file: Path | None) -> int:
    """Write what the model of ``run`` has changed ``since``: a checkpoint of this run by its name, or the folder of any
    checkpoint, model or run.
    """
    folder, base, target = export.newest(run), earlier(run, since), file or run / DELTA
    atomic_file.check_replaceable(target, SAFETENSORS)
    with atomic_file.whole(target) as beside:
        before, now = (DeltaModel.of(run, each) for each in (base, folder))
        check_tables(before, now)
        arrays, rows, keyed, total = export.dense_tensors(now.config, folder), dict[str, int](), dict[str, Any](), 0
        for table in range(len(now.origin.cardinalities)):
            keys, old, new = export.keys_of(table), before.tensors(table), now.tensors(table)
            check_widths(old, new, base)
            if keys in new:
                arrays |= keyed_delta.difference(keys, old, new)
                keyed[keys], total = [name for name in new if name != keys], total + len(new[keys])
                continue
            for name, values in new.items():
                arrays |= changed(name, old[name], values)
                rows[name], total = len(values), total + len(values)
        about = {MODEL_KEY: checksum(folder), BASE: checksum(base), ROWS: json.dumps(rows), KEYED: json.dumps(keyed)}
        tensor_files.write_safetensors(arrays, beside, about)
    gone = f", {entries(arrays, GONE):,} keys are gone" if keyed else ""
    what = f"{entries(arrays, IDS, CHANGED):,} of {total:,} rows{gone}"
    print(f"{what}, {target.stat().st_size / 1e6:,.1f} MB in {target}, since {base}")
    return 0


def entries(arrays: Mapping[str, np.ndarray], *ends: str) -> int:
    """How many there are in the arrays whose names end so."""
    return sum(len(values) for name, values in arrays.items() if name.endswith(ends))


class DeltaModel(NamedTuple):
    """A model or checkpoint: its folder, the settings with its network, the data that it belongs to."""

    folder: Path
    config: Config
    origin: DataOrigin

    @classmethod
    def of(cls, run: Path, folder: Path) -> DeltaModel:
        """That in ``folder``, with the settings of ``run``; DataError unless all of it is intact and can be written as
        tensors.
        """
        model_files.check_in_one_process(folder)
        config = saved_network.of_model(load(run / RUN_FILE, to_train=False), folder)
        export.check_operators(config, folder)
        return cls(folder, config, DataOrigin.of_model(folder, config.data.folder))

    def tensors(self, table: int) -> dict[str, np.ndarray]:
        """Those of one table, as an export has them."""
        return export.table_tensors(self.config, table, saved_tables.read(self.config, self.folder, self.origin, table))


def check_tables(before: DeltaModel, now: DeltaModel) -> None:
    """DataError if tables or rows of static ones are not there any more, or a table is dynamic in one model only."""
    old, new = before.origin, now.origin
    if old.features.key_columns != new.features.key_columns:
        raise DataError(
            f"{before.folder}: has rows by key where {now.folder} has them by id, or the other way: export the whole"
            " model"
        )
    sizes = zip(old.cardinalities, new.cardinalities, strict=False)
    if len(old.cardinalities) != len(new.cardinalities) or any(was > size for was, size in sizes):
        raise DataError(
            f"{before.folder}: has tables, or rows of them, that {now.folder} has not: export the whole model"
        )


def check_widths(old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray], base: Path) -> None:
    """DataError unless the tensors of a table have rows of the same sizes in both models."""
    for name, values in new.items():
        if name not in old or old[name].shape[1:] != values.shape[1:]:
            raise DataError(f"{base}: its {name} has rows of another size: export the whole model")


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


def changed(name: str, old: np.ndarray, new: np.ndarray) -> dict[str, np.ndarray]:
    """The rows of ``new`` that differ in a bit from those of ``old``, or that it does not have."""
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
        """DataError if it cannot be read or its checksum is wrong; files of earlier versions have none."""
        library = tensor_files.safetensors()
        try:
            with library.safe_open(path, framework="numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
                about = {name: text for name, text in (file.metadata() or {}).items() if name != "format"}
        except (OSError, library.SafetensorError) as error:
            raise DataError(
                f"{path}: not a readable file of safetensors ({error}): name what 'ssmpi export' wrote"
            ) from None
        written = about.pop(CHECKSUM, None)
        if written is not None and written != tensor_files.checksum(arrays, about):
            raise DataError(f"{path}: damaged: its SHA-256 is not the one that was written: write it again")
        return cls(path, arrays, about)


def apply(base: Path, deltas: Sequence[Path], target: Path) -> int:
    """Write the export ``base`` with all ``deltas``, in order, to ``target``. DataError, and nothing is written, if one
    is of another base.
    """
    atomic_file.check_replaceable(target, SAFETENSORS)
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
            f"{path}: what has changed since model {about[BASE][:12]}..., but {before.path} has model"
            f" {before.about[MODEL_KEY][:12]}...: name all deltas in between, in order, or export the whole"
        )
    try:
        arrays = dict(merged(before, delta))
        if lacking := before.arrays.keys() - arrays.keys():
            raise ContentError(f"it has no {min(lacking)}")
        if wrong := [name for name, values in arrays.items() if not np.isfinite(values).all()]:
            raise ContentError(f"{wrong[0]} has values that are not numbers")
        return TensorFile(path, arrays, about)
    except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged: {json_problem(error)}: write it again") from error


def merged(before: TensorFile, delta: TensorFile) -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays of the model after a delta; ContentError names one that no export has."""
    for name, count in parse_json(delta.about[ROWS]).items():
        old, ids, values = before.arrays[name], delta.arrays[f"{name}{IDS}"], delta.arrays[f"{name}{VALUES}"]
        check_ascending(f"{name}{IDS}", ids)
        check_values(f"{name}{VALUES}", values, (len(ids), *old.shape[1:]))
        new = ids[np.searchsorted(ids, len(old)) :]
        if (ids[:1] < 0).any() or count != len(old) + len(new) or (new[-1:] != count - 1).any():
            raise ContentError(f"{name}{IDS} are not those of {count} rows, of which {len(old)} are there")
        whole = np.empty((count, *old.shape[1:]), np.float32)
        whole[: len(old)] = old
        whole[ids] = values
        yield name, whole
    for keys, tensors in parse_json(delta.about.get(KEYED, "{}")).items():  # earlier versions wrote no dynamic tables
        yield from keyed_delta.merged(keys, tensors, before.arrays, delta.arrays)
    ends = IDS, VALUES, CHANGED, GONE
    for name, values in delta.arrays.items():
        if not name.endswith(ends):
            check_values(name, values, before.arrays[name].shape)
            yield name, values
