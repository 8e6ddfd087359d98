"""Tables of tokens, small and larger than the cache, against Python's dictionaries."""

from collections import Counter

import numpy as np
import pytest

from data_prep.table.rows import TableRows
from data_prep.vocabulary.lookup import look_up, lookup_table
from data_prep.vocabulary.tables import LARGE, LOAD, CountTable, WideCountTable
from data_prep.vocabulary.vocabulary_file import by_count

SIZES = [50, int(1.2 * LOAD * LARGE)]  # distinct tokens


def drawn(kind, distinct, rows, seed=1):
    """Tokens of a kind, and rows of them, some missing."""
    generator = np.random.default_rng(seed)
    most = np.iinfo(kind).max
    tokens = np.unique(np.append(generator.integers(0, most, distinct, dtype=kind), np.array([0, most], kind)))
    of_rows = generator.choice(tokens, rows)
    absent = (generator.random((1, rows)) < 0.1).astype(np.uint8)
    return tokens, TableRows(np.zeros(rows, np.uint8), np.empty((0, rows)), of_rows[None], absent)


@pytest.mark.parametrize("distinct", SIZES)
@pytest.mark.parametrize("table", [CountTable, WideCountTable])
def test_every_token_is_counted_block_by_block(table, distinct):
    kind, made = (np.uint64 if table is WideCountTable else np.uint32), table()
    _, rows = drawn(kind, distinct, 2 * distinct)
    for part in (rows.part(0, 30), rows.part(30, distinct), rows.part(distinct, rows.rows)):
        made.take(part, 0, part.tokens[0], 0)
    expected = Counter(rows.tokens[0][rows.absent[0] == 0].tolist())
    tokens, counts = made.drain()
    assert tokens.dtype == kind
    assert list(zip(tokens.tolist(), counts.tolist(), strict=True)) == sorted(expected.items())
    assert made.entries == 0


@pytest.mark.parametrize("distinct", SIZES)
@pytest.mark.parametrize(("kind", "reserved"), [(np.uint32, True), (np.uint32, False), (np.uint64, True)])
def test_every_token_gets_its_id(kind, reserved, distinct):
    tokens, rows = drawn(kind, distinct, distinct)
    known = np.random.default_rng(2).permutation(tokens)[: len(tokens) // 2]
    first = 2 if reserved else 0
    numbers = {token: first + i for i, token in enumerate(known.tolist())}
    unseen = 1 if reserved else -1
    expected = [
        0 if gone and reserved else numbers.get(token, unseen)
        for token, gone in zip(rows.tokens[0].tolist(), rows.absent[0].tolist(), strict=True)
    ]
    ids = look_up(rows.tokens, rows, [lookup_table(known, first)], reserved=reserved)
    assert ids.dtype == np.int32
    assert ids[0].tolist() == expected


@pytest.mark.parametrize("most", [3, 2**16 - 1, 2**16 + 1, 2**40])
def test_counts_descend_and_equal_ones_stay_in_order(most):
    generator = np.random.default_rng(3)
    counts = np.concatenate([generator.integers(1, most, 500), np.repeat([most, most - 1, 1], 40), [2**16 - 2] * 9])
    counts = generator.permutation(counts)
    assert by_count(counts).tolist() == sorted(range(len(counts)), key=lambda i: -counts[i])
