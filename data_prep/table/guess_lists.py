"""Whether a column of text has lists, and what lies between their values: for ``guess``, from a sample.

Text is taken for lists if values repeat as those of lists do, or, where they rarely repeat, if all look like ids. What
may lie between words of prose is held to more: titles and names are no lists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.table.schema import BRACKETS
from data_prep.table.text_values import lists_in_brackets

DISTINCT_SHARE = {
    "|": 0.8,
    ";": 0.8,
    "^": 0.8,
    "\x01": 0.8,
    "\x02": 0.8,
    ", ": 0.5,
    ",": 0.5,
    " ": 0.2,
}  # of values, at most: those of lists repeat
OF_LISTS, OF_PROSE = ("|", ";", "^", "\x01", "\x02"), (", ", " ")
SOME, NEARLY_ALL = 0.1, 0.95  # shares
MANY = 3  # values of a text: decimal commas, and names such as Smith, John, make two
GROWTH = 1.2  # of different values, when twice as many texts are read; of words of prose 1.4 to 1.6 (Heaps' law)
REPEATED = 1.1  # how much oftener values come than whole texts
LOOKED_AT = 20_000  # values, for their shapes
ID_LENGTH = 6  # of ids that are equally long, such as hashes, and need not have digits at the same places
SHAPE = ((r"^-", ""), (r"\p{Ll}+", "a"), (r"\p{Lu}+", "A"), (r"^0\d+$", "z"), (r"\d+", "0"))  # of item-123: a-0
FRACTION = "0.0"


def separator_of(column: pa.ChunkedArray) -> str:
    """What lies between the values of lists in strings; empty if they seem to be none."""
    cells = column.cast(pa.string()).drop_null()
    texts = pc.unique(cells)
    if _in_brackets(texts):
        return BRACKETS
    return next((separator for separator in DISTINCT_SHARE if Split(cells, texts, separator).has_lists), "")


def _in_brackets(texts: pa.Array) -> bool:
    """Whether nearly all texts are lists in brackets, and their values no numbers with fractions."""
    if share_of(pc.match_substring_regex(texts, r"^\s*\[")) < NEARLY_ALL:
        return False
    lists = lists_in_brackets(texts.cast(pa.binary()))
    fractions = share_of(pc.match_substring_regex(lists.flatten(), r"^[-+]?\d*\.\d*([eE][-+]?\d+)?$"))
    return share_of(lists.is_valid()) >= NEARLY_ALL and fractions < SOME


@dataclass(frozen=True)
class Split:
    """The cells of a column, and their different ``texts``, with a separator that may make lists of them."""

    cells: pa.ChunkedArray
    texts: pa.Array
    separator: str

    @property
    def has_lists(self) -> bool:
        """Whether the parts are like the values of lists."""
        share = share_of(pc.match_substring(self.texts, self.separator))
        if share < SOME or self._edges > 1 - NEARLY_ALL or self._are_numbers:
            return False
        lengths = pc.list_value_length(self._lists)
        long, even = pc.max(lengths).as_py() >= MANY, pc.count_distinct(lengths).as_py() == 1
        if self._values_repeat and (long or self.separator in OF_LISTS):
            return True
        if not long or even:
            return False
        return self._are_ids or (self.separator in OF_LISTS and self._repeat_more_than_texts)

    @cached_property
    def _lists(self) -> pa.Array:
        return pc.split_pattern(self.texts, pattern=self.separator)

    @cached_property
    def _values(self) -> pa.Array:
        values = self._lists.flatten()
        return values.filter(pc.not_equal(values, ""))

    @property
    def _edges(self) -> float:
        """The share of values that begin or end with a space: the separator has more to it, or is one of prose."""
        return share_of(pc.match_substring_regex(self._values, r"^\s|\s$"))

    @property
    def _values_repeat(self) -> bool:
        """Whether few are different; and, of what may be words of prose, whether more texts bring hardly new ones."""
        distinct = pc.count_distinct(self._values).as_py()
        if distinct > DISTINCT_SHARE[self.separator] * len(self._values):
            return False
        half = self._lists[: (len(self.texts) + 1) // 2].flatten()
        return self.separator not in OF_PROSE or distinct <= GROWTH * pc.count_distinct(half).as_py()

    @property
    def _are_ids(self) -> bool:
        """Whether nearly all values are ids of one kind: of the same shape with digits in it, or equally long."""
        values = self._values[:LOOKED_AT]
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

    @property
    def _are_numbers(self) -> bool:
        """Whether texts are numbers whose digits are in groups of three, but for the first: 12,345,678."""
        between = re.escape(self.separator)
        groups = rf"^-?\d{{1,3}}([{between}]\d{{3}})*$"
        short = share_of(pc.match_substring_regex(self.texts, rf"^-?\d{{1,2}}[{between}]"))
        return short > SOME and share_of(pc.match_substring_regex(self.texts, groups)) >= NEARLY_ALL

    @property
    def _repeat_more_than_texts(self) -> bool:
        """Whether values come again oftener than whole texts do."""
        values = pc.list_flatten(pc.split_pattern(self.cells, pattern=self.separator))
        often = len(values) / pc.count_distinct(values).as_py()
        return often > REPEATED * len(self.cells) / len(self.texts)


def share_of(chosen: pa.Array) -> float:
    """Of True."""
    return (pc.sum(chosen).as_py() or 0) / max(1, len(chosen))


def _most_frequent(values: pa.Array) -> Any:
    counts = pc.value_counts(values)
    return counts.field("values")[int(np.argmax(counts.field("counts").to_numpy()))].as_py()
