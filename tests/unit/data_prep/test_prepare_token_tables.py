"""Tables of tokens, small and larger than the cache, against Python's dictionaries."""

from collections import Counter

import numpy as np
import pytest

from data_prep.rows import Tokens
from data_prep.vocabulary.token_tables import COUNT_LOAD, LARGE, MIX, CountTable, look_up, lookup_table
from data_prep.vocabulary.vocabulary_file import by_count

SIZES = [50, int(1.2 * COUNT_LOAD * LARGE)]  # distinct tokens


def drawn(kind, distinct, rows, seed=1, *, coded=False):
    """Different tokens of a kind; those of some rows, a few missing; and what each row has, None where missing."""
    generator = np.random.default_rng(seed)
    most = np.iinfo(kind).max
    values = np.unique(np.append(generator.integers(0, most, distinct, dtype=kind), np.array([0, most], kind)))
    codes = generator.integers(0, len(values), rows, dtype=np.int32)
    if coded:  # missing ones too are of a code
        absent = (generator.random(len(values)) < 0.1).astype(np.uint8)
        tokens, gone = Tokens(values, absent, codes=codes), absent[codes]
    else:
        gone = (generator.random(rows) < 0.1).astype(np.uint8)
        tokens = Tokens(values[codes], gone * np.uint8(4), bit=2)
    return values, tokens, [None if no else one for one, no in zip(values[codes].tolist(), gone.tolist(), strict=True)]


KINDS = [(np.uint32, False), (np.uint64, False), (np.uint64, True)]


@pytest.mark.parametrize("distinct", SIZES)
@pytest.mark.parametrize(("kind", "coded", "hashes"), [*((*kind, False) for kind in KINDS), (np.uint64, False, True)])
def test_every_token_is_counted_block_by_block(kind, coded, hashes, distinct):
    made = CountTable(kind, hashes=hashes)
    _, tokens, rows = drawn(kind, distinct, 2 * distinct, coded=coded)
    assert tokens.absent == rows.count(None)
    odd = np.arange(len(rows)) % 2 == 1
    for part in (slice(0, 30), slice(30, distinct), odd & (np.arange(len(rows)) >= distinct)):
        made.count(tokens.take(part))
    some = rows[:distinct] + [row for i, row in enumerate(rows) if i >= distinct and odd[i]]
    expected = Counter(row for row in some if row is not None)
    found, counts = made.drain()
    assert found.dtype == kind
    assert list(zip(found.tolist(), counts.tolist(), strict=True)) == sorted(expected.items())
    assert made.entries == 0


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
def test_tokens_ascend_where_one_alone_differs_in_a_digit(kind):
    for bit in range(8, 8 * np.dtype(kind).itemsize):
        values, made = np.array([(1 << bit) + 1, 3, 4], kind), CountTable(kind)
        made.count(Tokens(values, np.zeros(3, np.uint8)))
        assert made.drain()[0].tolist() == sorted(values.tolist())


@pytest.mark.parametrize("lowest", [0, 2**64 - 40, 2**63 - 20])
def test_hashes_with_the_same_upper_bits_ascend(lowest):
    """Of a whole cluster, also one that has no room at the end of the table and goes on at its beginning."""
    few = [0, 1, 2**63, 2**64 - 2]
    values = np.random.default_rng(4).permutation(np.array([*range(lowest, lowest + 40), *few], np.uint64))
    made = CountTable(np.uint64, hashes=True)
    for _ in range(3):
        made.count(Tokens(values, np.zeros(len(values), np.uint8)))
    found, counts = made.drain()
    expected = Counter(values.tolist() * 3)
    assert list(zip(found.tolist(), counts.tolist(), strict=True)) == sorted(expected.items())


@pytest.mark.parametrize("distinct", SIZES)
@pytest.mark.parametrize(("kind", "coded"), KINDS)
def test_every_token_gets_its_id(kind, coded, distinct):
    values, tokens, rows = drawn(kind, distinct, distinct, coded=coded)
    known = np.random.default_rng(2).permutation(values)[: len(values) // 2]
    numbers = {token: 2 + i for i, token in enumerate(known.tolist())}
    ids = look_up(tokens, lookup_table(known, 2))
    assert ids.dtype == np.int32
    assert ids.tolist() == [0 if row is None else numbers.get(row, 1) for row in rows]


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
def test_tokens_that_belong_to_the_last_slot_go_on_at_the_first(kind):
    drawn = np.random.default_rng(2).integers(0, np.iinfo(kind).max, 500, dtype=kind)
    last = [token for token in drawn if (int(token) * int(MIX) % 2**64 >> 32) * 7 >> 32 == 6]
    tokens = np.array(last[:9], kind)
    table = lookup_table(tokens[:5], 3)
    assert len(table) == 7
    ids = look_up(Tokens(tokens, np.zeros(9, np.uint8)), table)
    assert ids.tolist() == [3, 4, 5, 6, 7, 1, 1, 1, 1]


@pytest.mark.parametrize("most", [3, 2**16 - 1, 2**16 + 1, 2**40])
def test_counts_descend_and_equal_ones_stay_in_order(most):
    generator = np.random.default_rng(3)
    counts = np.concatenate([generator.integers(1, most, 500), np.repeat([most, most - 1, 1], 40), [2**16 - 2] * 9])
    counts = generator.permutation(counts)
    assert by_count(counts).tolist() == sorted(range(len(counts)), key=lambda i: -counts[i])
