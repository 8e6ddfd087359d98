"""Batches of rows with lists, against the lists as h5py reads them."""

import h5py
import numpy as np
import pytest
from datasets import LIST_CARDINALITIES, WITH_LISTS, draw_lists, make_lists_dataset

from ssmpi.data.features import Features, ListOptions
from ssmpi.data.reader import BatchCutter, SplitReader, batches, batches_in, shuffled
from ssmpi.data.schema import read_manifest, write_manifest, write_shard
from ssmpi.data.shard_columns import Columns, Lists
from ssmpi.runtime.errors import DataError

LISTS_ONLY = Features(
    ("age",), ("tags", "words"), {"tags": ListOptions("sum", longest=6), "words": ListOptions("sum", longest=3)}
)


@pytest.fixture(scope="module", params=["mixed", "lists alone"])
def data(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lists")
    if request.param == "mixed":
        return make_lists_dataset(folder, 1_500)
    return make_lists_dataset(folder, 1_500, features=LISTS_ONLY, cardinalities=(90, 40))


def rows_of(folder):
    """Every training row by its dense features: a list of (ids, weights) for each sparse feature."""
    manifest, found = read_manifest(folder), {}
    features = manifest.features
    for entry in manifest.splits["train"].shards:
        with h5py.File(folder / entry.file) as shard:
            columns = {name: shard[name][:] for name in shard}
        at, ends = 0, columns["list_ends"]
        for row in range(entry.rows):
            bags, one, of = [], iter(columns["ids"][row]), iter(ends[row])
            for name in features.sparse:
                if name not in features.lists:
                    bags.append(([int(next(one))], [1.0]))
                    continue
                end = int(next(of))
                ids, count = columns["list_ids"][at:end].tolist(), end - at
                weights = [1.0] * count
                if features.lists[name].weighted:
                    weights = columns["list_weights"][at:end].tolist()
                if features.lists[name].pooling == "mean":
                    weights = [float(np.float32(1) / np.float32(max(count, 1)))] * count
                bags.append((ids, weights))
                at = end
            found[columns["dense"][row].tobytes()] = bags
    return found


def bags_of(batch):
    """The same, of a batch."""
    bags, found = batch.ids, []
    for b in range(len(batch) * bags.features):
        span = slice(bags.starts[b], bags.starts[b + 1])
        ids = bags.ids[span].tolist()
        found.append((ids, bags.weights[span].tolist() if bags.weights.size else [1.0] * len(ids)))
    return [found[k : k + bags.features] for k in range(0, len(found), bags.features)]


def check(batch, rows):
    for dense, bags in zip(batch.dense, bags_of(batch), strict=True):
        assert bags == rows[dense.tobytes()]


@pytest.mark.parametrize("block_rows", [97, 640, 65_536])
def test_blocks_hold_the_lists_of_their_rows(data, block_rows):
    reader, rows, seen = SplitReader(data, "train", block_rows), rows_of(data), 0
    buffer = reader.buffer()
    for block in [reader.blocks[0], *reader.blocks[::-1]]:
        read = reader.read(block, buffer)
        check(read, rows)
        seen += len(read)
    assert seen == 1_500 + reader.blocks[0].rows


@pytest.mark.parametrize("batch_size", [1, 64, 600, 3000])
def test_a_cut_batch_outlives_the_cut_of_the_next(data, monkeypatch, batch_size):
    monkeypatch.setattr(BatchCutter, "ROWS", 200)
    reader, rows = SplitReader(data, "train", 600), rows_of(data)
    buffer, before, seen = reader.buffer(), None, 0
    cutter = BatchCutter(buffer, batch_size)
    for number, block in enumerate(reader.blocks):
        order = shuffled(1, 3, number, size=block.rows)[3:]
        for batch in cutter.batches(order, reader.read(block, buffer)):
            check(batch, rows)
            if before:
                check(before, rows)
            before = batch
            seen += len(batch)
    assert seen == 1_500 - 3 * len(reader.blocks)


def test_batches_in_order_and_shuffled_hold_the_same(data):
    reader, rows = SplitReader(data, "train", 500), rows_of(data)
    block = reader.read(reader.blocks[0])
    order = shuffled(4, size=500)
    shuffled_ones = list(batches_in(order, block, 64))
    for batch in (*batches(block, 64), *shuffled_ones):
        check(batch, rows)
    together = np.concatenate([batch.dense for batch in shuffled_ones])
    np.testing.assert_array_equal(together, block.dense[order])


def test_a_column_of_one_id_features(tmp_path):
    data = make_lists_dataset(tmp_path, 300)
    reader = SplitReader(data, "train", 300)
    block = reader.read(reader.blocks[0])
    with h5py.File(data / reader.shards[0].file) as shard:
        np.testing.assert_array_equal(block.column(2), shard["ids"][:, 1])
        np.testing.assert_array_equal(block.part(10, 20).column(0), shard["ids"][10:20, 0])


def test_blank_rows_have_one_id_in_each_bag(data):
    blank = SplitReader(data, "train", 300).blank(2)
    assert [ids for row in bags_of(blank) for ids, _ in row] == [[0]] * (2 * blank.ids.features)


@pytest.mark.parametrize(("at", "value", "words"), [((5, 1), 0, "row 5 do not ascend"), ((99, 2), 10**6, "end at")])
def test_ends_that_make_no_sense_are_no_crash(tmp_path, at, value, words):
    """Of a faulty program, whose checksum is right."""
    generator = np.random.default_rng(1)
    effects = {n: generator.normal(size=c) for n, c in zip(WITH_LISTS.sparse, LIST_CARDINALITIES, strict=True)}
    data = make_lists_dataset(tmp_path, 100)
    manifest = read_manifest(data)
    found = draw_lists(generator, effects, WITH_LISTS, 100)
    lists = found.lists
    lists.ends[at] = value
    (entry,) = manifest.splits["train"].shards
    bad = Columns(found.ids, found.dense, found.label, lists)
    size, checksum = write_shard(data / entry.file, bad, {})
    split = manifest.splits["train"].__class__(
        (entry.__class__(entry.file, 100, entry.positives, size, checksum, len(lists.ids)),)
    )
    write_manifest(data, manifest.__class__(LIST_CARDINALITIES, {"train": split}, True, features=WITH_LISTS))
    reader = SplitReader(data, "train", 100)
    with pytest.raises(DataError, match=r"shard-00000\.h5: .*(do not ascend|end at)"):
        reader.verify(0)
    with pytest.raises(DataError, match=f"shard-00000.h5: .*{words}"):
        reader.read(reader.blocks[0])
    assert isinstance(lists, Lists)
