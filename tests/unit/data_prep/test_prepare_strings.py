"""Strings of Arrow columns: which of them mean a missing value."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from data_prep.table.arrow_strings import null_where_missing

WORDS = st.text("abï", max_size=3)


@given(st.lists(st.none() | WORDS, max_size=30), st.lists(WORDS, max_size=3))
def test_missing_strings_are_null(texts, missing):
    column = pa.array(["x", *texts]).cast(pa.binary())[1:]  # a slice, with an offset
    found = null_where_missing(column, pa.array([text.encode() for text in missing], pa.binary()))
    assert found.cast(pa.string()).to_pylist() == [None if text in missing else text for text in texts]
