"""Decides for ``guess``, from a sample, whether a column of text has lists, and what separates their values.

Text is taken for lists if values repeat as those of lists do, or, where they rarely repeat, if all look like ids. What
may lie between words of prose is held to more: titles and names are no lists.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.table.schema import BRACKETS
from data_prep.table.text_values import lists_in_brackets

OF_LISTS, OF_PROSE = ("|", ";", "^", "\x01", "\x02"), (", ", " ")
DISTINCT_SHARE = {**dict.fromkeys(OF_LISTS, 0.95), ", ": 0.5, ",": 0.5, " ": 0.2}  # of values, at most: lists repeat
SOME, NEARLY_ALL = 0.1, 0.95  # shares
MANY = 3  # values of a text: decimal commas, and names such as Smith, John, make two
GROWTH = 1.2  # of different values, when twice as many texts are read; of words of prose 1.4 to 1.6 (Heaps' law)
LOOKED_AT = 20_000  # values, for their shapes
ID_LENGTH = 6  # of ids that are equally long, such as hashes, and need not have digits at the same places
SHAPE = ((r"^-", ""), (r"\p{Ll}+", "a"), (r"\p{Lu}+", "A"), (r"^0\d+$", "z"), (r"\d+", "0"))  # of item-123: a-0
FRACTION = "0.0"


def separator_of(column: pa.ChunkedArray) -> str:
    """What lies between the values of lists in strings; empty if they seem to be none."""
    texts = pc.unique(column.cast(pa.string()).drop_null())
    if _in_brackets(texts):
        return BRACKETS
    return next((separator for separator in DISTINCT_SHARE if _has_lists(texts, separator)), "")


def _in_brackets(texts: pa.Array) -> bool:
    """Whether nearly all texts are lists in brackets, and their values no numbers with fractions."""
    if share_of(pc.match_substring_regex(texts, r"^\s*\[")) < NEARLY_ALL:
        return False
    lists = lists_in_brackets(texts.cast(pa.binary()))
    fractions = share_of(pc.match_substring_regex(lists.flatten(), r"^[-+]?\d*\.\d*([eE][-+]?\d+)?$"))
    return share_of(lists.is_valid()) >= NEARLY_ALL and fractions < SOME


def _has_lists(texts: pa.Array, separator: str) -> bool:
    """Whether the parts of different ``texts`` are like the values of lists."""
    if share_of(pc.match_substring(texts, separator)) < SOME or _are_numbers(texts, separator):
        return False
    lists = pc.split_pattern(texts, pattern=separator)
    values, lengths = lists.flatten(), pc.list_value_length(lists)
    values = values.filter(pc.not_equal(values, ""))
    if share_of(pc.match_substring_regex(values, r"^\s|\s$")) > 1 - NEARLY_ALL:
        return False  # the separator has more to it, or is one of prose
    long = pc.max(lengths).as_py() >= MANY
    distinct = pc.count_distinct(values).as_py()
    repeat = distinct <= DISTINCT_SHARE[separator] * len(values)
    if separator in OF_PROSE:
        half = lists[: (len(texts) + 1) // 2].flatten()
        repeat &= distinct <= GROWTH * pc.count_distinct(half).as_py()
    if repeat and (long or separator in OF_LISTS):
        return True
    return long and pc.count_distinct(lengths).as_py() > 1 and _are_ids(values[:LOOKED_AT])


def _are_numbers(texts: pa.Array, separator: str) -> bool:
    """Whether texts are numbers whose digits are in groups of three, but for the first: 12,345,678."""
    between = re.escape(separator)
    groups = rf"^-?\d{{1,3}}([{between}]\d{{3}})*$"
    short = share_of(pc.match_substring_regex(texts, rf"^-?\d{{1,2}}[{between}]"))
    return short > SOME and share_of(pc.match_substring_regex(texts, groups)) >= NEARLY_ALL


def _are_ids(values: pa.Array) -> bool:
    """Whether nearly all values are ids of one kind: of the same shape with digits in it, or equally long."""
    shapes = values
    for pattern, sign in SHAPE:
        shapes = pc.replace_substring_regex(shapes, pattern, sign)
    shape, lengths = _most_frequent(shapes), pc.utf8_length(values)
    if "0" in shape and share_of(pc.equal(shapes, shape)) >= NEARLY_ALL:
        return bool(shape != FRACTION)
    length = _most_frequent(lengths)
    alike = pc.and_(pc.match_substring_regex(values, r"^[0-9A-Za-z_-]+$"), pc.equal(lengths, length))
    numbered = share_of(pc.match_substring_regex(values, r"\d"))
    return bool(length >= ID_LENGTH and numbered > 1 - SOME and share_of(alike) >= NEARLY_ALL)


def share_of(chosen: pa.Array) -> float:
    """Of True."""
    return (pc.sum(chosen).as_py() or 0) / max(1, len(chosen))


def _most_frequent(values: pa.Array) -> Any:
    counts = pc.value_counts(values)
    return counts.field("values")[int(np.argmax(counts.field("counts").to_numpy()))].as_py()
