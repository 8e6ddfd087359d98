"""Files that are no tables of text, told by their first bytes or their first line, to be refused by name."""

from __future__ import annotations

import re

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
TEXT = {
    r"""\s*(\{\s*("|$)|\[\s*([{\["]|$))""": ("JSON", "convert it to CSV or Parquet, for example with pandas.read_json"),
    rf"{NUMBER}(\s+\d+:\d+:{NUMBER})+\s*$": ("in the libffm format", "write a column for each field"),
    rf"{NUMBER}(\s+qid:\d+)?(\s+\d+:{NUMBER})+\s*(#.*)?$": ("in the libsvm format", "write a column for each feature"),
    r"[^:\t,;]*(::[^:\t,;]*)+$": ("text with '::' between values", "replace it by tabs: sed 's/::/\\t/g'"),
}


def binary_format(start: bytes) -> str:
    """What a file is that begins with ``start``, and the remedy; empty if it may be text."""
    return next((f"{name}; {remedy}" for magic, (name, remedy) in BINARY.items() if re.match(magic, start, re.S)), "")


def text_format(line: str) -> str:
    """What text is that begins with ``line``, and the remedy; empty if it may be a table."""
    return next((f"{name}; {remedy}" for form, (name, remedy) in TEXT.items() if re.match(form, line)), "")
