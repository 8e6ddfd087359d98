"""The prepared data set: HDF5 shards and a manifest. Written by ``data_prep``, read by ``ssmpi.data``, defined only
here.

A data set is a folder::

    manifest.json            written last: a folder without it is not whole
    vocabulary.h5            token -> id, per feature
    train/shard-00000.h5     ids int32 (rows, features with one id), dense float32 (rows, dense), label uint8 (rows,)
                             with list features, version 2: list_ends int64 (rows, lists), list_ids int32 (ids,),
                             list_weights float32 (ids,) if any list is weighted
                             with keyed features, version 3: keys int64 (rows, keyed)
    validation/shard-00000.h5, test/shard-00000.h5

Columns are contiguous and uncompressed, so that a reader gets blocks at memory speed. An unlabelled set has no
``label``. ``list_ids`` has the lists of a row one after the other; ``list_ends`` says where in it each list ends. The
manifest names the sparse and the dense features, and which sparse ones are lists. Ids of sparse feature ``f`` lie in
``[0, cardinalities[f])``: 0 is missing, 1 is rare or unseen, then by frequency. A list without ids is empty, not
missing. A keyed feature has a 64-bit hash of its token instead, 0 for a missing one, and the cardinality 0.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import h5py

from ssmpi.data import hdf5_file
from ssmpi.data.features import CRITEO, Features, GroupColumn
from ssmpi.data.hdf5_file import frame_checksum
from ssmpi.data.shard_columns import Columns, kinds
from ssmpi.runtime.documents import parse_json
from ssmpi.runtime.errors import DamageError, DataError, json_problem
from ssmpi.runtime.files import atomic_file, hdf5

ONE_ID, WITH_LISTS, WITH_KEYS = 1, 2, 3  # versions: of sets with one id a feature; with lists; with keys
SHARD_FORMAT = "ssmpi-shard"
MANIFEST_FORMAT = "ssmpi-dataset"
MANIFEST_NAME = "manifest.json"
WORK_NAME = ".prepare"  # state of an unfinished preparation; removed at its end
VOCABULARY_NAME = "vocabulary.h5"
EXTENDS = "extends"  # in what a manifest says of its vocabulary: SHA-256 of those whose ids its own begin with
SPLITS = ("train", "validation", "test")

DTYPES = {
    "ids": "<i4", "dense": "<f4", "label": "u1", "list_ends": "<i8", "list_ids": "<i4", "list_weights": "<f4",
    "keys": "<i8",
}  # fmt: skip

MOST = 2**31 - 1  # ids of a feature, which are int32; rows of a shard
MISSING_ID = 0
RARE_ID = 1
MISSING_KEY = 0
KEY_OF_ZERO = 1  # of a token whose hash is 0

MAKE = (
    "make one of raw files with 'ssmpi-prepare criteo RAW --output FOLDER' (Criteo's text) or 'ssmpi-prepare table"
    " --schema SCHEMA RAW --output FOLDER' (other CSV, TSV or Parquet)"
)
MAKE_AGAIN = "prepare the data again with --overwrite, or restore intact copies"


@dataclass(frozen=True)
class ShardEntry:
    """One shard as the manifest records it. ``file`` is relative to the folder; ``checksum`` is over the columns;
    ``list_ids`` counts the ids of all lists.
    """

    file: str
    rows: int
    positives: int
    bytes: int
    checksum: str
    list_ids: int = 0

    def __post_init__(self) -> None:
        for name in ("rows", "positives", "bytes", "list_ids"):
            number = getattr(self, name)
            if type(number) is not int or number < 0:
                raise DataError(f"{name} of shard {self.file!r} is {number!r}, not a count")
        if self.rows > MOST:
            raise DataError(f"rows of shard {self.file!r} is {self.rows:,}, and a shard has at most {MOST:,}")
        path = PurePosixPath(self.file)
        if path.is_absolute() or ".." in path.parts:
            raise DataError(f"shard {self.file!r} lies outside the data folder")


@dataclass(frozen=True)
class Split:
    """The shards of one split, in order, and the source rows they were made from (half-open, over all sources)."""

    shards: tuple[ShardEntry, ...]
    row_ranges: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        """Rows in all shards."""
        return sum(s.rows for s in self.shards)

    @property
    def positives(self) -> int:
        """Clicked rows in all shards."""
        return sum(s.positives for s in self.shards)


@dataclass(frozen=True)
class DatasetManifest:
    """What a prepared folder holds, ``cardinalities`` by sparse feature, else DataError. ``provenance`` is free-form:
    transform, seed, sources with sizes and checksums.
    """

    cardinalities: tuple[int, ...]
    splits: Mapping[str, Split]
    labelled: bool = True
    provenance: Mapping[str, Any] = field(default_factory=dict)
    features: Features = CRITEO

    def __post_init__(self) -> None:
        check_cardinalities(self.cardinalities, self.features)

    @property
    def version(self) -> int:
        """Of the schema."""
        return version_of(bool(self.features.lists), bool(self.features.keyed))

    def record(self) -> dict[str, Any]:
        """As JSON has it. Without list features, it is what versions that knew none recorded."""
        body = asdict(self) | {"features": self.features.record()}
        if not self.features.lists:
            for split in body["splits"].values():
                for shard in split["shards"]:
                    del shard["list_ids"]
        return body

    @property
    def group(self) -> GroupColumn | None:
        """The column of the feature that the schema named as its group, which metrics by group are of; None without."""
        return self.features.group_column(self.provenance.get("arguments", {}).get("schema.group"))

    def has_rows(self, name: str) -> bool:
        """Whether there is such a split with anything in it."""
        return name in self.splits and self.splits[name].rows > 0

    def split(self, name: str) -> Split:
        """Return one split, or raise DataError naming those there are."""
        if name not in self.splits:
            close = difflib.get_close_matches(name, self.splits, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise DataError(f"no split '{name}' in this data set; it has {', '.join(self.splits) or 'none'}{hint}")
        return self.splits[name]


def vocabulary_group_name(feature: str) -> str:
    """Of the group of a feature: HDF5 would take a slash in its name, and a dot alone, for a path."""
    if feature == ".":
        return "%2E"
    return feature.replace("%2", "%252").replace("/", "%2F")


def vocabulary_group(file: h5py.File, feature: str) -> h5py.Group:
    """The group of a feature in ``vocabulary.h5``; of one with a slash also where earlier versions put it."""
    name = vocabulary_group_name(feature)
    return file[name if name in file else feature]


def version_of(lists: bool, keys: bool) -> int:
    """Of the schema, for sets with ``lists`` or ``keys``."""
    return WITH_KEYS if keys else WITH_LISTS if lists else ONE_ID


def write_manifest(folder: Path, manifest: DatasetManifest) -> Path:
    """Write ``manifest.json`` beside its place and rename it: the folder is whole from that moment."""
    body = {"format": MANIFEST_FORMAT, "schema_version": manifest.version, **manifest.record()}
    target = folder / MANIFEST_NAME
    atomic_file.write(target, json.dumps(body, indent=1) + "\n")
    return target


def read_manifest(folder: Path) -> DatasetManifest:
    """Read and check ``manifest.json``; DataError says what is wrong with the folder."""
    path = folder / MANIFEST_NAME
    if not folder.is_dir():
        raise DataError(
            f"{folder}: {'a file, not a prepared folder' if folder.exists() else 'no such data folder'}; {MAKE}"
        )
    if not path.is_file():
        if not any((folder / name).exists() for name in (WORK_NAME, VOCABULARY_NAME, *SPLITS)):
            raise DataError(f"{folder}: not a prepared folder: no {MANIFEST_NAME} in it; {MAKE}")
        raise DataError(
            f"{path}: missing, so this folder is not a whole data set; run the same 'ssmpi-prepare' command again to"
            " finish it"
        )
    try:
        body = parse_json(path.read_text(encoding="utf-8"))
        found = (body.pop("format"), body.pop("schema_version"))
        if found[0] != MANIFEST_FORMAT or found[1] not in range(ONE_ID, WITH_KEYS + 1):
            wanted = f"this program reads {MANIFEST_FORMAT!r} versions {ONE_ID} to {WITH_KEYS}"
            raise DamageError(path, f"format {found[0]!r} version {found[1]!r}, {wanted}", MAKE_AGAIN)
        splits = {
            name: Split(
                tuple(ShardEntry(**entry) for entry in split["shards"]),
                tuple((int(a), int(b)) for a, b in split["row_ranges"]),
            )
            for name, split in body.pop("splits").items()
        }
        cardinalities = tuple(map(int, body.pop("cardinalities")))
        recorded = body.pop("features", None)
        features = CRITEO if recorded is None else Features.recorded(**recorded)
        manifest = DatasetManifest(cardinalities, splits, **body, features=features)
        if manifest.version != found[1]:
            raise DataError(f"version {found[1]} of the schema, but its features are of version {manifest.version}")
        return manifest
    except DamageError:
        raise
    except DataError as error:
        raise DamageError(path, f"damaged: {error}", MAKE_AGAIN) from error
    except (OSError, KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise DamageError(path, f"damaged: {json_problem(error)}", MAKE_AGAIN) from error


def check_cardinalities(cardinalities: tuple[int, ...], features: Features) -> None:
    """Raise DataError unless each sparse feature has a cardinality that its ids can have: 0 if it has keys."""
    tables, sparse = len(cardinalities), len(features.sparse)
    if tables != sparse:
        raise DataError(f"{tables} cardinalities, expected {sparse}: one for each sparse feature")
    for name, rows in zip(features.sparse, cardinalities, strict=True):
        if not 0 <= rows <= MOST:
            raise DataError(f"{rows:,} ids of feature {name!r}: a feature has from 0 to {MOST:,}")
        if rows and name in features.keyed:
            raise DataError(f"{rows} ids of feature {name!r}, which has keys: its cardinality is 0")


def write_shard(path: Path, columns: Columns, attributes: Mapping[str, Any]) -> tuple[int, str]:
    """Write one shard beside its place, flush it to disk and rename it. Returns its size in bytes and its checksum.

    Arguments as those of ``lay_out_shard``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file.whole(path) as beside:
        total = lay_out_shard(beside, columns, attributes)
    return path.stat().st_size, total


def lay_out_shard(path: Path, columns: Columns, attributes: Mapping[str, Any]) -> str:
    """Write the bytes of a shard, not yet flushed to disk. Returns its checksum.

    ``attributes`` go on the file: split, cardinalities, transform, seed, source row range. The same arguments give the
    same bytes.
    """
    total, named = columns.checksum, columns.named()
    path.parent.mkdir(parents=True, exist_ok=True)
    with hdf5_file.create(path, sum(column.nbytes for column in named.values())) as out:
        out.attrs["format"] = SHARD_FORMAT
        out.attrs["schema_version"] = version_of(columns.lists is not None, columns.keys is not None)
        out.attrs["checksum"] = total
        for name, value in attributes.items():
            out.attrs[name] = value
        for name, column in named.items():
            hdf5_file.write(out, name, column, DTYPES[name])
    return total


def _check_frame(folder: Path, entry: ShardEntry, manifest: DatasetManifest) -> None:
    """Compare a shard's frame with the manifest before HDF5 reads it: HDF5 can loop for ever over a damaged one.

    A few KiB are read. DataError names the file. Sets that ``ssmpi-prepare`` did not make may lack the record.
    """
    path = folder / entry.file
    try:
        recorded = manifest.provenance.get("files", {}).get(entry.file)
        same = not isinstance(recorded, Mapping) or frame_checksum(path, recorded["columns"]) == recorded["frame"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        found = f"its record of {entry.file} makes no sense: {json_problem(error)}"
        raise DamageError(folder / MANIFEST_NAME, found, MAKE_AGAIN) from error
    if not same:
        found = "its HDF5 header is not the one in the manifest: damaged or not this data set's"
        raise DamageError(path, found, MAKE_AGAIN)


def open_shard(folder: Path, entry: ShardEntry, manifest: DatasetManifest) -> h5py.File:
    """Open one shard read-only after checking that it is the one in the manifest; DataError names the file otherwise.

    The columns are not read: ``columns.check`` does that.
    """
    path = folder / entry.file
    if not path.is_file():
        raise DamageError(path, "shard is in the manifest but not on disk", MAKE_AGAIN)
    if (size := path.stat().st_size) != entry.bytes:
        found = f"{size:,} bytes, the manifest says {entry.bytes:,}: truncated or not this data set's"
        raise DamageError(path, found, MAKE_AGAIN)
    _check_frame(folder, entry, manifest)
    try:
        shard = h5py.File(path, "r", locking=False)
    except OSError as error:
        raise DamageError(path, f"not a readable HDF5 file ({error})", MAKE_AGAIN) from error
    wanted = kinds(manifest.features, entry.rows, entry.list_ids, labelled=manifest.labelled)
    try:
        columns = {name: (str(shard[name].dtype), shard[name].shape) for name in wanted if name in shard}
        header = tuple(shard.attrs[name] for name in ("format", "schema_version", "checksum"))
        header = (str(header[0]), int(header[1]), str(header[2]))
    except hdf5.UNREADABLE as error:
        shard.close()
        raise DamageError(path, f"damaged HDF5 file ({error})", MAKE_AGAIN) from error
    expected = (SHARD_FORMAT, manifest.version, entry.checksum)
    if header != expected or columns != wanted:
        shard.close()
        found = f"header {header}, columns {columns}, expected {expected} and {wanted}"
        raise DamageError(path, f"not the shard that the manifest names ({found})", MAKE_AGAIN)
    return shard
