"""The raw files: the files that folders and patterns stand for, their order, and formats that are refused by name."""

from __future__ import annotations

import codecs
import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from data_prep.pieces import DAY_NAME, RawSource
from data_prep.raw.text_stream import MAX_ROW_BYTES, read_some, text_of
from ssmpi.runtime.errors import DataError

PARQUET = b"PAR1"
MAGICS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
REWRITE = "save its columns as CSV or Parquet"
BINARY = {
    rb"PK\x03\x04.{26}[ -.0-~]+\.npy": ("a NumPy archive (npz)", REWRITE),
    rb"PK\x03\x04.{26}(\[Content_Types\]|_rels/|docProps/|xl/)": ("an Excel workbook", "save its sheet as CSV"),
    rb"\xd0\xcf\x11\xe0": ("an Excel workbook", "save its sheet as CSV"),
    rb"PK(\x03\x04|\x05\x06)": ("a zip archive", "unpack it with unzip"),
    rb"7z\xbc\xaf\x27\x1c": ("a 7z archive", "unpack it with 7z x"),
    rb".{257}ustar": ("a tar archive", "unpack it with tar -x"),
    rb"BZh\d1AY": ("compressed with bzip2", "unpack it with bunzip2, or compress it with gzip or zstd"),
    rb"\xfd7zXZ\0": ("compressed with xz", "unpack it with unxz, or compress it with gzip or zstd"),
    rb"\x04\x22\x4d\x18": ("compressed with LZ4", "unpack it with lz4 -d, or compress it with gzip or zstd"),
    rb"ORC": ("an ORC file", "convert it to Parquet, for example with pyarrow.orc"),
    rb"ARROW1|FEA1": ("a Feather (Arrow IPC) file", "convert it to Parquet, for example with pyarrow.feather"),
    rb"\xff{4}": ("an Arrow IPC stream", "convert it to Parquet, for example with pyarrow.ipc"),
    rb"Obj\x01": ("an Avro file", REWRITE),
    rb"\x93NUMPY": ("a NumPy array", REWRITE),
    rb"\x89HDF\r\n": ("an HDF5 file", REWRITE),
    rb"SQLite format 3\0": ("an SQLite database", REWRITE),
    rb"\x80[\x03-\x05][\x95\x8c\x63\x7d\x5d]": ("a Python pickle", REWRITE),
    rb"(?!\0{4}).{4}\0{4}.{8}": ("a TFRecord file", REWRITE),  # the length of its first record, and a checksum
}
NUMBER = r"[-+]?[\d.]+([eE][-+]?\d+)?"
READ_JSON = "convert it to CSV or Parquet, for example with pandas.read_json"
TEXT = {
    r"""\s*\{\s*".*\}\s*$""": ("JSON lines", f"{READ_JSON}(path, lines=True)"),
    r"""\s*(\{\s*("|$)|\[\s*([{\["]|$))""": ("JSON", READ_JSON),
    rf"{NUMBER}(\s+\d+:\d+:{NUMBER})+\s*$": ("in the libffm format", "write a column for each field"),
    rf"{NUMBER}(\s+qid:\d+)?(\s+\d+:{NUMBER})+\s*(#.*)?$": ("in the libsvm format", "write a column for each feature"),
    r"[^:\t,;]*(::[^:\t,;]*)+$": ("text with '::' between values", "replace it by tabs: sed 's/::/\\t/g'"),
}


def expand(given: Sequence[Path]) -> list[Path]:
    """The given files, and those of given folders and patterns. Left out, and printed, are empty files of these, and
    names that begin with ``.`` or ``_``, as Spark's markers do, unless such a file is given alone. DataError for a
    folder or a pattern without files.
    """
    paths: list[Path] = []
    left_out: list[Path] = []
    for path in given:
        if not path.is_dir() and (path.exists() or not glob.has_magic(str(path))):
            spare = len(given) > 1 and _is_hidden(path.name)
            (left_out if spare else paths).append(path)
            continue
        found = _files_of(path)
        empty = [one for one in found if not one.stat().st_size]
        if len(found) == len(empty):
            what = "this folder has no file with data" if path.is_dir() else "no file with data has such a name"
            raise DataError(f"{path}: {what}; check the path")
        paths += [one for one in found if one not in empty]
        left_out += empty
    if left_out:
        names = ", ".join(str(path) for path in left_out[:3]) + ", ..." * (len(left_out) > 3)
        print(f"left out, because they hold no data: {names}", flush=True)
    return paths


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Sorted by name, numbers in names by value: part 2 before part 10."""
    return sorted(
        paths, key=lambda path: [int(s) if i % 2 else s for i, s in enumerate(re.split("([0-9]+)", str(path)))]
    )


def _files_of(path: Path) -> list[Path]:
    """Those of a folder and its folders, or of all that a pattern matches."""
    if path.is_dir():
        files = (one for one in path.rglob("*") if not any(map(_is_hidden, one.relative_to(path).parts)))
        return in_order(one for one in files if one.is_file())
    names = glob.glob(str(path), recursive=True)  # noqa: PTH207 - of absolute patterns too
    matches = in_order(Path(name) for name in names if not _is_hidden(Path(name).name))
    return [file for one in matches for file in ([one] if one.is_file() else _files_of(one))]


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def open_sources(paths: Sequence[Path], multiline: str = "") -> list[RawSource]:
    """Check the raw files and sort day files by day; DataError names an invalid path. ``multiline``: see
    ``RawSource``.
    """
    _refuse_twice(paths)
    days = [DAY_NAME.search(p.name) for p in paths]
    if all(days):
        paths = [p for _, p in sorted((int(d[1]), p) for d, p in zip(days, paths, strict=True) if d)]
    return [_open(path, index, multiline) for index, path in enumerate(paths)]


def _refuse_twice(paths: Sequence[Path]) -> None:
    """DataError for a file that is given twice: by another path or link, or once plain and once as gzip."""
    given: dict[object, Path] = {}
    for path in paths:
        names: list[object] = [os.path.realpath(path).removesuffix(".gz")]
        if path.is_file():
            names.append((path.stat().st_dev, path.stat().st_ino))
        for name in names:
            if name in given:
                raise DataError(f"{path}: given twice, also as {given[name]}; give each file once, plain or as gzip")
        given |= dict.fromkeys(names, path)


def _open(path: Path, index: int, multiline: str) -> RawSource:
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    if not path.is_file():
        raise DataError(f"{path}: is a pipe or a device, which cannot be read twice; save its text to a file first")
    facts = path.stat()
    if facts.st_size == 0:
        raise DataError(f"{path}:1: the file is empty (0 bytes); fetch it again or leave it out")
    with path.open("rb") as file:
        start = file.read(4)
    compression = next((name for magic, name in MAGICS.items() if start.startswith(magic)), "")
    source = RawSource(path, index, facts.st_size, facts.st_mtime_ns, compression, multiline)
    _refuse_other_formats(source)
    return source


def _refuse_other_formats(source: RawSource) -> None:
    """DataError for a file that is neither UTF-8 text in lines nor Parquet, also if it is so after decompression."""
    path = source.path
    with path.open("rb") as raw, text_of(source, raw) as file:
        start, _ = read_some(file, MAX_ROW_BYTES)
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise DataError(f"{path}:1: is UTF-16 text; convert it with iconv -f UTF-16 -t UTF-8")
    packed = f" compressed with {source.compression}" * bool(source.compression)
    if start.startswith(PARQUET):
        if packed:
            raise DataError(f"{path}: is a Parquet file{packed}; unpack it: Parquet compresses its columns itself")
    elif other := binary_format(start):
        raise DataError(f"{path}: is {other}")
    elif b"\r" in start and b"\n" not in start:
        raise DataError(
            f"{path}:1: its lines end in CR alone; convert them: tr '\\r' '\\n' < {path.name} > converted.csv"
        )


def binary_format(start: bytes) -> str:
    """What a file is that begins with ``start``, and the remedy; empty if it may be text."""
    return next((f"{name}; {remedy}" for magic, (name, remedy) in BINARY.items() if re.match(magic, start, re.S)), "")


def text_format(line: str) -> str:
    """What text is that begins with ``line``, and the remedy; empty if it may be a table."""
    return next((f"{name}; {remedy}" for form, (name, remedy) in TEXT.items() if re.match(form, line)), "")
