"""Differences of tables with rows by key against plain dictionaries."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ssmpi.embedding.key_kernels import RESERVED
from ssmpi.tools import keyed_delta

KEYS, TENSORS = "keys.3", {"emb_l.3.weight": 2, "first_l.3.weight": 1}  # and their columns
VALUES = st.sampled_from([0.0, -0.0, 1.0, float("nan"), -1e-38])
ROWS = st.dictionaries(
    st.one_of(st.integers(-3, 6), st.sampled_from([-(2**63), 2**63 - 1])), st.tuples(VALUES, VALUES, VALUES), max_size=8
)


def arrays(reserved, rows):
    """A table as an export has it."""
    keys = sorted(rows)
    values = np.array([*reserved, *(rows[key] for key in keys)], np.float32).reshape(-1, 3)
    return {KEYS: np.array(keys, np.int64), "emb_l.3.weight": values[:, :2], "first_l.3.weight": values[:, 2:]}


RESERVED_ROWS = st.tuples(*[st.tuples(VALUES, VALUES, VALUES)] * RESERVED)


@given(RESERVED_ROWS, ROWS, RESERVED_ROWS, ROWS)
def test_a_table_with_its_difference_is_the_next_one(before, old, after, new):
    one, other = arrays(before, old), arrays(after, new)
    found = keyed_delta.difference(KEYS, one, other)
    bits = [{key: np.array(values, np.float32).tobytes() for key, values in rows.items()} for rows in (old, new)]
    assert found[f"{KEYS}.gone"].tolist() == sorted(old.keys() - new.keys())
    expected = sorted(key for key in new if bits[1][key] != bits[0].get(key))
    assert found[f"{KEYS}.changed"].tolist() == expected
    merged = dict(keyed_delta.merged(KEYS, list(TENSORS), one, found))
    assert merged.keys() == other.keys()
    for name, values in other.items():
        assert (merged[name].dtype, merged[name].shape) == (values.dtype, values.shape)
        assert merged[name].tobytes() == np.ascontiguousarray(values).tobytes()
