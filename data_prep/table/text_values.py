"""Text values that Arrow's CSV reader rejects: integers written as floats, as pandas writes them where some are
missing, times with a zone or an offset, and lists as Python, numpy and JSON write them.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from data_prep.table.arrow_strings import ARROW
from data_prep.table.schema import INTEGER, NUMBER, STRING, TIMESTAMP

DATE = r"\d{4}-\d\d-\d\d"
MOMENT = rf"{DATE}[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
UTC_TIMES = (
    (rf"^({DATE})$", r"\1T00:00:00"),
    (r"(:\d\d\.\d{6})\d+", r"\1"),  # microseconds are enough
    (rf"^({MOMENT}) ([-+])", r"\1\2"),
    (rf"^({MOMENT}) ?(?:Z|z|UTC|GMT)?$", r"\1Z"),
)
QUOTED = r'"(?:[^"\\]|\\.)*"' r"|'(?:[^'\\]|\\.)*'"
IN_BRACKETS = re.compile(rf"""\s*\[((?:[^][\"']|{QUOTED})*)\]\s*""", re.DOTALL)
VALUE = re.compile(rf"""({QUOTED})|[^\s,"']+""")
SCALAR = re.compile(r"\bnp\.\w+\(([^()]*)\)")  # as numpy 2 writes its numbers in lists of Python
NO_VALUES = "None", "null", "nan", "NaN"


def integers_of(texts: pa.Array) -> pa.Array:
    """int64 (rows,) of integers, which may end in ``.0``; ArrowInvalid if one is no integer of 64 bits."""
    return _replaced(texts, ((r"^([-+]?\d+)\.0*$", r"\1"),)).cast(ARROW[INTEGER])


def numbers_of(texts: pa.Array) -> pa.Array:
    """float64 (rows,) of numbers; ArrowInvalid if one is none."""
    return _replaced(texts, ()).cast(ARROW[NUMBER])


def times_of(texts: pa.Array) -> pa.Array:
    """timestamp[us] (rows,) of instants, in UTC where a text names no zone; ArrowInvalid if one is no time."""
    return _replaced(texts, UTC_TIMES).cast(pa.timestamp("us", "UTC")).cast(ARROW[TIMESTAMP])


READERS: Mapping[str, Callable[[pa.Array], pa.Array]] = {INTEGER: integers_of, TIMESTAMP: times_of}


def first_refused(column: pa.Array, read: Callable[[pa.Array], pa.Array]) -> int:
    """The first row that ``read`` refuses, by bisection."""
    start, stop = 0, len(column)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            read(column[start:middle])
        except pa.ArrowInvalid:
            stop = middle
        else:
            start = middle
    return start


def _replaced(texts: pa.Array, patterns: Sequence[tuple[str, str]]) -> pa.Array:
    """Strings without spaces around them, each pattern replaced."""
    texts = pc.utf8_trim_whitespace(texts.cast(pa.string()))
    for pattern, replacement in patterns:
        texts = pc.replace_substring_regex(texts, pattern, replacement)
    return texts


def lists_in_brackets(texts: pa.Array) -> pa.Array:
    """Lists of bytes (rows,) of texts such as ``[7, 12]``, ``[7 12]`` or ``["a", "b"]``, whose values may be missing;
    null for a text that is no such list.
    """
    codes = texts.dictionary_encode()
    lists = [_in_brackets(text.decode("utf-8", "surrogateescape")) for text in codes.dictionary.to_pylist()]
    return pa.array(lists, pa.list_(ARROW[STRING])).take(codes.indices)


def _in_brackets(text: str) -> list[bytes | None] | None:
    inner = IN_BRACKETS.fullmatch(SCALAR.sub(r"\1", text))
    found: list[bytes | None] = []
    for value in VALUE.finditer(inner[1]) if inner else ():
        written = value[0]
        if written == "...":  # numpy leaves values out
            return None
        if value[1]:
            try:
                written = json.loads(written) if written[0] == '"' else ast.literal_eval(written)
            except (ValueError, SyntaxError):
                return None
        missing = not value[1] and written in NO_VALUES
        found.append(None if missing else written.encode("utf-8", "surrogateescape"))
    return found if inner else None
