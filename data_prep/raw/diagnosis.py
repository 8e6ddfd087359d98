"""Diagnoses, in plain Python, a raw row that the compiled parser has rejected."""

from __future__ import annotations

import re

from data_prep.columns import DENSE_FEATURES, DENSE_NAMES, SPARSE_FEATURES, SPARSE_NAMES
from data_prep.raw.fields import INT64_MAX

FIELDS = {True: 1 + DENSE_FEATURES + SPARSE_FEATURES, False: DENSE_FEATURES + SPARSE_FEATURES}


def shorten(content: bytes) -> str:
    """A readable representation of raw bytes for a message, of bounded length."""
    text = content.decode("utf-8", "backslashreplace")
    return repr(text if len(text) <= 60 else text[:40] + "..." + text[-12:])


def diagnose(row: bytes, labelled: bool) -> tuple[str, str] | None:
    """The problem of one row (without its newline): (reason, what was found and the remedy); None if it is valid."""
    fields = row.removesuffix(b"\r").split(b"\t")
    wanted = FIELDS[labelled]
    kind = "labelled" if labelled else "unlabelled"
    if b"\x00" in row:
        return "NUL byte", f"a NUL byte in {shorten(row)}; the file is damaged or not plain text, fetch it again"
    if len(fields) != wanted:
        reason = "too few fields" if len(fields) < wanted else "too many fields"
        hint = "repair or remove the row"
        if len(fields) == FIELDS[not labelled]:
            hint = "labelled and unlabelled rows cannot be mixed: prepare them apart"
        return reason, f"{len(fields)} fields, expected {wanted} ({kind}) in {shorten(row)}; {hint}"
    if labelled and fields[0] not in (b"0", b"1"):
        return "label", f"label {shorten(fields[0])} is not 0 or 1; repair or remove the row"
    first = 1 if labelled else 0
    for name, field in zip(DENSE_NAMES, fields[first:], strict=False):
        if field and not re.fullmatch(rb"-?[0-9]+", field):
            return "integer", f"{name} is {shorten(field)}, not an integer; repair or remove the row"
        digits = field.lstrip(b"-").lstrip(b"0")
        if len(digits) > 19 or int(digits or b"0") > INT64_MAX:
            return "integer range", f"{name} is {shorten(field)}, beyond 64 bits; repair or remove the row"
    for name, field in zip(SPARSE_NAMES, fields[first + DENSE_FEATURES :], strict=True):
        if not re.fullmatch(rb"[0-9a-fA-F]*", field):
            return "token", f"{name} is {shorten(field)}, not a hexadecimal token; repair or remove the row"
        if len(field) > 8:
            return (
                "token length",
                f"{name} is {shorten(field)}, {len(field)} digits, at most 8; repair or remove the row",
            )
    return None
