"""``ssmpi-prepare verify``: reads a whole prepared folder and reports exactly which file is bad and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np

from data_prep.files import file_checksum
from data_prep.shards.provenance import manifest_checksum
from data_prep.vocabulary.vocabulary_file import read_vocabulary
from ssmpi.data.schema import (
    MAKE_AGAIN,
    MANIFEST_NAME,
    SPLITS,
    VOCABULARY_NAME,
    DatasetManifest,
    ShardEntry,
    open_shard,
    read_manifest,
)
from ssmpi.data.shard_columns import Columns, Lists, read_columns
from ssmpi.data.values import bad_values, times
from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.errors import DamageError, DataError, json_problem
from ssmpi.runtime.files import hdf5
from ssmpi.runtime.words import counted


@dataclass(frozen=True)
class Finding:
    """One file that differs from the manifest, and how."""

    path: Path
    text: str
    damaged: bool = True  # False: the file does not belong to this data set

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def verify(folder: Path) -> list[Finding]:
    """Check everything against the manifest; one finding per bad file, none if the folder is intact. DataError if it is
    not a prepared folder, or its manifest cannot be read. A set that another program has written with ``write_shard``
    and ``write_manifest`` has neither vocabulary nor provenance: its columns are checked.
    """
    manifest = read_manifest(folder)
    found = [finding for _, finding in checked_shards(folder, manifest)]
    if _has_provenance(folder, manifest):
        found = [_manifest(folder / MANIFEST_NAME, manifest), _vocabulary(folder / VOCABULARY_NAME, manifest), *found]
    return [finding for finding in (*found, *_strangers(folder, manifest)) if finding]


def checked_shards(folder: Path, manifest: DatasetManifest) -> Iterator[tuple[Columns | None, Finding | None]]:
    """Each shard's columns, None if they cannot be read, and what is wrong with it, on one line, because one damaged
    place can have many symptoms. One shard is in memory at a time.
    """
    recorded = _has_provenance(folder, manifest)
    for entry in (entry for split in manifest.splits.values() for entry in split.shards):
        path = folder / entry.file
        if recorded and not isinstance(_record_of(entry.file, manifest), dict):
            # the HDF5 library can hang or crash on an unverified header
            yield None, Finding(path, "the manifest has no checksum for this file")
            continue
        try:
            with open_shard(folder, entry, manifest) as shard:
                columns = read_columns(shard, 0, entry.rows)
                wrong = "; ".join(_content(columns, entry, manifest))
        except DamageError as error:
            yield None, Finding(error.path, error.found)
        except DataError as error:
            yield None, Finding(path, str(error))
        except hdf5.UNREADABLE as error:
            yield None, Finding(path, f"not readable ({error})")
        else:
            yield columns, Finding(path, wrong) if wrong else None


def _has_provenance(folder: Path, manifest: DatasetManifest) -> bool:
    """Whether a preparation has written the folder, with its vocabulary and a record of all files."""
    return bool(manifest.provenance) or (folder / VOCABULARY_NAME).exists()


def conclusion(folder: Path, findings: Sequence[Finding]) -> str:
    """The number of bad files and the remedy."""
    damaged = sum(finding.damaged for finding in findings)
    foreign = len(findings) - damaged
    lines = []
    if damaged:
        lines.append(f"{counted(damaged, 'damaged file')}: {MAKE_AGAIN}")
    if foreign:
        lines.append(
            f"{foreign:,} foreign file{' or folder: move it' if foreign == 1 else 's or folders: move them'} elsewhere"
        )
    return f"{folder}: {'. '.join(lines)}"


def _manifest(path: Path, manifest: DatasetManifest) -> Finding | None:
    text = path.read_text(encoding="utf-8")
    try:
        if text != json.dumps(parse_json(text), indent=1) + "\n":
            return Finding(path, "its text was changed or cut after it was written")
        if manifest.provenance.get("manifest_checksum") != manifest_checksum(manifest):
            return Finding(path, "was changed after it was written (its own checksum differs)")
        for name, split in manifest.splits.items():
            rows = sum(stop - start for start, stop in split.row_ranges)
            if rows != split.rows:
                return Finding(path, f"split {name} has {split.rows:,} rows in its shards, but source rows of {rows:,}")
    except (TypeError, ValueError) as error:
        return Finding(path, json_problem(error))
    return None


def _record_of(name: str, manifest: DatasetManifest) -> object:
    files = manifest.provenance.get("files", {})
    return files.get(name) if isinstance(files, dict) else None


def _vocabulary(path: Path, manifest: DatasetManifest) -> Finding | None:
    if not path.is_file():
        return Finding(path, "missing")
    if file_checksum(path) != _record_of(VOCABULARY_NAME, manifest):
        return Finding(path, "the checksum of the file is not the one in the manifest")
    try:
        if tuple(read_vocabulary(path).cardinalities) != tuple(manifest.cardinalities):
            return Finding(path, "its cardinalities are not those of the manifest")
    except DamageError as error:
        return Finding(error.path, error.found)
    return None


def _content(columns: Columns, entry: ShardEntry, manifest: DatasetManifest) -> Iterator[str]:
    if not manifest.labelled and columns.label is not None:
        yield "has labels, but the manifest says unlabelled"
        columns = replace(columns, label=None)
    if columns.checksum != entry.checksum:
        yield "the checksum of the columns is not the one in the manifest"
    yield from bad_values(columns, manifest)
    if columns.lists:
        yield from _long_lists(columns.lists, manifest)
    if columns.label is not None and int(np.count_nonzero(columns.label)) != entry.positives:
        yield f"{np.count_nonzero(columns.label):,} clicked rows, the manifest says {entry.positives:,}"


def _long_lists(lists: Lists, manifest: DatasetManifest) -> Iterator[str]:
    """The first list that is longer than the manifest allows."""
    names, lengths = manifest.features.list_names, lists.lengths
    longest = np.array([manifest.features.lists[name].longest for name in names])
    rows, places = np.nonzero(lengths > longest)
    if len(rows):
        row, f = rows[0], places[0]
        what = f"{lengths[row, f]:,} ids of {names[f]}, whose longest list has {longest[f]:,}"
        yield f"row {row}: {what}{times(len(rows))}"


def _strangers(folder: Path, manifest: DatasetManifest) -> Iterator[Finding]:
    """Files that do not belong to this data set."""
    known = {entry.file for split in manifest.splits.values() for entry in split.shards}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and name in SPLITS:
            continue
        if name not in known | {MANIFEST_NAME, VOCABULARY_NAME}:
            kind = "an HDF5 file" if path.is_file() and h5py.is_hdf5(path) else "a file or folder"
            yield Finding(path, f"{kind} that the manifest does not know", damaged=False)
