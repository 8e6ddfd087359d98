"""``ssmpi-prepare verify``: reads a whole prepared folder and says exactly which file is bad and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from data_prep.files import file_checksum
from data_prep.shards.provenance import manifest_checksum
from data_prep.vocabulary.vocabulary_file import read_vocabulary
from ssmpi.core.errors import DataError
from ssmpi.data.schema import (
    MANIFEST_NAME,
    SPLITS,
    VOCABULARY_NAME,
    Manifest,
    ShardEntry,
    checksum,
    open_shard,
    read_manifest,
)

REMEDY = "delete it and prepare again"


def verify(folder: Path) -> list[str]:
    """Check everything against the manifest; one text per finding, none when the folder is whole."""
    try:
        manifest = read_manifest(folder)
    except DataError as error:
        return [str(error)]
    return [
        *_manifest(folder, manifest),
        *_vocabulary(folder, manifest),
        *_shards(folder, manifest),
        *_strangers(folder, manifest),
    ]


def _manifest(folder: Path, manifest: Manifest) -> Iterator[str]:
    path = folder / MANIFEST_NAME
    text = path.read_text(encoding="utf-8")
    if text != json.dumps(json.loads(text), indent=1) + "\n":
        yield f"{path}: its text was changed or cut after it was written; prepare the data again"
    try:
        if manifest.provenance.get("manifest_checksum") != manifest_checksum(manifest):
            yield f"{path}: was changed after it was written (its own checksum differs); prepare the data again"
        for name, split in manifest.splits.items():
            rows = sum(stop - start for start, stop in split.row_ranges)
            if rows != split.rows:
                yield f"{path}: split {name} has {split.rows:,} rows in its shards, but source row ranges of {rows:,}"
    except (TypeError, ValueError) as error:
        yield f"{path}: not a readable manifest ({error}); prepare the data again"


def _record_of(name: str, manifest: Manifest) -> object:
    files = manifest.provenance.get("files", {})
    return files.get(name) if isinstance(files, dict) else None


def _vocabulary(folder: Path, manifest: Manifest) -> Iterator[str]:
    path = folder / VOCABULARY_NAME
    if path.is_file() and file_checksum(path) != _record_of(VOCABULARY_NAME, manifest):
        yield f"{path}: the checksum of the file is not the one in the manifest; {REMEDY}"
        return
    try:
        vocabulary = read_vocabulary(path)
        if tuple(vocabulary.cardinalities) != tuple(manifest.cardinalities):
            yield f"{path}: its cardinalities are not those of the manifest; {REMEDY}"
    except DataError as error:
        yield str(error)


def _shards(folder: Path, manifest: Manifest) -> Iterator[str]:
    for split in manifest.splits.values():
        for entry in split.shards:
            if isinstance(_record_of(entry.file, manifest), dict):
                yield from shard_findings(folder, entry, manifest)
            else:  # the HDF5 library can hang or crash on a header that nobody vouches for
                yield f"{folder / entry.file}: the manifest has no checksum for this file; prepare the data again"


def shard_findings(folder: Path, entry: ShardEntry, manifest: Manifest) -> list[str]:
    """What is wrong inside one shard."""
    path = folder / entry.file
    try:
        with open_shard(folder, entry, manifest) as shard:
            return [f"{path}: {text}; {REMEDY}" for text in _content(shard, entry, manifest)]
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        text = str(error)
        return [text if str(path) in text else f"{path}: not readable ({text}); {REMEDY}"]


def _content(shard: h5py.File, entry: ShardEntry, manifest: Manifest) -> Iterator[str]:
    ids, dense = shard["ids"][:], shard["dense"][:]
    label = shard["label"][:] if manifest.labelled else None
    if not manifest.labelled and "label" in shard:
        yield "has labels, but the manifest says unlabelled"
    if checksum(ids, dense, label) != entry.checksum:
        yield "the checksum of the columns is not the one in the manifest"
    for f, cardinality in enumerate(manifest.cardinalities):
        low, high = (int(ids[:, f].min()), int(ids[:, f].max())) if len(ids) else (0, 0)
        if low < 0 or high >= max(cardinality, 1):
            row = int(np.flatnonzero((ids[:, f] < 0) | (ids[:, f] >= cardinality))[0])
            yield f"row {row}: id {ids[row, f]} of C{f + 1} is outside [0, {cardinality})"
    if not np.isfinite(dense).all():
        row, column = np.argwhere(~np.isfinite(dense))[0]
        yield f"row {row}: I{column + 1} is {dense[row, column]}"
    if label is not None:
        if len(label) and label.max() > 1:
            row = int(np.flatnonzero(label > 1)[0])
            yield f"row {row}: label {label[row]} is not 0 or 1"
        if int(np.count_nonzero(label)) != entry.positives:
            yield f"{np.count_nonzero(label):,} clicked rows, the manifest says {entry.positives:,}"


def _strangers(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Files that are not of this data set."""
    known = {entry.file for split in manifest.splits.values() for entry in split.shards}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and name in SPLITS:
            continue
        if name not in known | {MANIFEST_NAME, VOCABULARY_NAME}:
            kind = "an HDF5 file" if path.is_file() and h5py.is_hdf5(path) else "a file or folder"
            yield f"{path}: {kind} that the manifest does not know; move it elsewhere"
