"""Packed rows come out as they went in, whatever the widths; ordering a vocabulary stays in its stated memory."""

import resource
import tracemalloc
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_prep.shards.needs import most_packed_bytes
from data_prep.shards.packing import SLACK, pack, row_bytes, unpack, widths
from data_prep.vocabulary.scan import Spill
from data_prep.vocabulary.vocabulary_file import MERGING_BYTES, ORDERING_BYTES, merge_feature
from ssmpi.data.features import CRITEO, Features

largest_values = st.sampled_from([0, 1, 255, 256, 65_535, 65_536, 2**24 - 1, 2**24, 2**31, 2**32, 2**56, 2**63 - 1])
cardinalities = st.sampled_from([1, 2, 255, 256, 257, 65_536, 65_537, 2**24, 2**24 + 1, 2**31 - 1])


@given(
    st.lists(cardinalities, min_size=26, max_size=26),
    st.lists(largest_values, min_size=13, max_size=13),
    st.integers(0, 2**32),
)
def test_rows_come_out_of_their_shard_as_they_went_in(cardinalities, largest, seed):
    generator, rows, shards = np.random.default_rng(seed), 200, 7
    ids = np.stack([generator.integers(0, c, rows) for c in cardinalities]).astype(np.int32)
    ids[:, :2] = np.array(cardinalities)[:, None] - 1
    integers = np.stack([generator.integers(0, m, rows, endpoint=True) for m in largest], axis=1)
    integers[:2] = largest
    label, goes_to = (
        generator.integers(0, 2, rows).astype(np.uint8),
        generator.integers(0, shards, rows).astype(np.int32),
    )
    features = Features(CRITEO.dense, (*CRITEO.sparse, "a", "b"), keyed=("a", "b"))
    keys = generator.integers(-(2**63), 2**63, (2, rows))
    keys[:, 0] = -1, 0
    wide = widths([*cardinalities, 0, 0], features.key_columns, largest)
    assert row_bytes(wide) <= most_packed_bytes(features)
    at = np.concatenate([[0], np.cumsum(np.bincount(goes_to, minlength=shards))])[:-1]
    packed = np.empty((rows, row_bytes(wide)), np.uint8)
    for cut in (slice(0, 130), slice(130, rows)):  # block by block
        pack((ids[:, cut], keys[:, cut], integers[cut], label[cut]), wide, goes_to[cut], at, packed)
    order = generator.permutation(rows).astype(np.uint32)
    out = [np.empty((rows, 26), np.int32), np.empty((rows, 2), np.int64), np.empty((rows, 13), np.float32)]
    out = *out, np.empty(rows, np.uint8)
    unpack(np.concatenate([packed.reshape(-1), np.full(SLACK, 255, np.uint8)]), order, wide, out, False)
    source = np.argsort(goes_to, kind="stable")[order]
    np.testing.assert_array_equal(out[0], ids[:, source].T)
    np.testing.assert_array_equal(out[1], keys[:, source].T)
    np.testing.assert_array_equal(out[2], np.log1p(integers[source].astype(np.float64)).astype(np.float32))
    np.testing.assert_array_equal(out[3], label[source])


def test_columns_take_no_more_bytes_than_they_need():
    assert widths([1, 256, 0, 257, 65_536, 65_537] + [3] * 21, [2], [0, 255, 256] + [2**63 - 1] * 10).tolist() == (
        [1, 1, 2, 2, 3] + [1] * 21 + [8] + [1, 1, 2] + [8] * 10
    )


def test_ordering_a_vocabulary_takes_the_stated_memory(tmp_path, monkeypatch):
    tokens, at_once, generator = 400_000, 50_000, np.random.default_rng(1)
    monkeypatch.setattr("data_prep.vocabulary.vocabulary_file.MERGE_ENTRIES", at_once)
    for name in ("a", "b"):
        drawn = np.sort(generator.choice(2**32, tokens, replace=False).astype(np.uint32))
        np.save(tmp_path / f"{name}.tokens.npy", drawn)
        np.save(tmp_path / f"{name}.values.npy", generator.integers(1, 50, tokens))
    bounds = [0] + [tokens] * 26
    for parts in (1, 2):
        tracemalloc.start()
        merged = merge_feature(tmp_path, [Spill(name, bounds) for name in "ab"[:parts]], 0, 1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(merged.tokens) > 0.99 * parts * tokens
        assert peak < ORDERING_BYTES * len(merged.tokens) + MERGING_BYTES * at_once


def test_many_parts_of_few_tokens_are_merged_in_the_stated_memory(tmp_path, monkeypatch):
    """As --max-ind-range gives them: all tokens in a small part of the range of tokens, and again in every part."""
    parts, tokens, at_once, generator = 90, 3000, 20_000, np.random.default_rng(2)
    monkeypatch.setattr("data_prep.vocabulary.vocabulary_file.MERGE_ENTRIES", at_once)
    expected: dict[int, int] = {}
    for part in range(parts):
        drawn = np.sort(generator.choice(4000 + 1000 * (part == 7), tokens, replace=False).astype(np.uint32))
        values = generator.integers(1, 1000, tokens)
        np.save(tmp_path / f"{part}.tokens.npy", drawn)
        np.save(tmp_path / f"{part}.values.npy", values)
        for token, value in zip(drawn.tolist(), values.tolist(), strict=True):
            expected[token] = expected.get(token, 0) + value
    ordered = sorted(expected, key=lambda token: (-expected[token], token))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + parts, hard))
    tracemalloc.start()
    try:
        merged = merge_feature(tmp_path, [Spill(str(part), [0] + [tokens] * 26) for part in range(parts)], 0, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert merged.tokens.tolist() == ordered
    assert merged.counts.tolist() == [expected[token] for token in ordered]
    assert peak < ORDERING_BYTES * len(ordered) + MERGING_BYTES * at_once
