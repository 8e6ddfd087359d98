"""Every row is read exactly once a pass, in an order that depends on the seed alone."""

import re
import shutil
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmpi import config
from ssmpi.data.block_dispatcher import NOT_YET, NOTHING_LEFT, BlockDispatcher, block_order
from ssmpi.data.feed import Feed, FeedOptions, most_pieces
from ssmpi.data.position import Piece, Position, StartedPiece
from ssmpi.data.reader import (
    BatchCutter,
    DataOptions,
    SplitReader,
    batches,
    batches_in,
    shuffled,
    suit_block_rows,
)
from ssmpi.data.trained_rows import Deal
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.topology import Topology
from ssmpi.state import run_folder
from ssmpi.trainer.control import share

STATIC, DYNAMIC = DataOptions("d", handout="static"), DataOptions("d", handout="dynamic")


def key(batch):
    """Rows that can be compared: dense features are distinct floats."""
    return [row.tobytes() for row in batch.dense]


@pytest.mark.parametrize("block_rows", [97, 640, 2_300, 65_536])
def test_blocks_hold_every_row_once(small_data, block_rows):
    reader = SplitReader(small_data, "train", block_rows)
    rows = [k for block in reader.blocks for k in key(reader.read(block))]
    assert len(rows) == len(set(rows)) == reader.rows == 6_000
    assert max(block.rows for block in reader.blocks) <= block_rows


def test_block_size_does_not_change_the_file_order(small_data):
    one, other = (SplitReader(small_data, "train", rows) for rows in (97, 65_536))
    assert [k for b in one.blocks for k in key(one.read(b))] == [k for b in other.blocks for k in key(other.read(b))]


@pytest.mark.parametrize("block_rows", [97, 65_536])
def test_blocks_are_what_hdf5_reads(small_data, block_rows):
    """Rows are read past HDF5, into buffer that a larger block has used before."""
    reader = SplitReader(small_data, "train", block_rows)
    buffer = reader.buffer()
    for block in [reader.blocks[0], *reader.blocks[::-1]]:
        read = reader.read(block, buffer)
        with h5py.File(small_data / reader.shards[block.shard].file) as shard:
            rows = slice(block.start, block.stop)
            np.testing.assert_array_equal(read.ids, shard["ids"][rows])
            np.testing.assert_array_equal(read.dense, shard["dense"][rows])
            np.testing.assert_array_equal(read.labels, shard["label"][rows])


def test_a_shard_that_is_cut_off_while_it_is_read_is_named(small_data, tmp_path):
    folder = shutil.copytree(small_data, tmp_path / "data")
    reader = SplitReader(folder, "train", 500)
    reader.read(reader.blocks[0])
    last = [block for block in reader.blocks if block.shard == 0][-1]
    path = folder / reader.shards[0].file
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(
        DataError, match=rf"{path.name}: rows {last.start} to {last.stop} cannot be read \(the file ends"
    ):
        reader.read(last)


@given(st.integers(1, 300), st.booleans())
def test_batches_cut_a_block_without_loss(small_data_block, batch_size, shuffle):
    block = small_data_block
    order = shuffled(1, 2, 0, 0, size=len(block))
    parts = list(batches_in(order, block, batch_size) if shuffle else batches(block, batch_size))
    assert [len(p) for p in parts[:-1]] == [batch_size] * (len(parts) - 1)
    rows = [k for part in parts for k in key(part)]
    assert sorted(rows) == sorted(key(block))
    assert (rows == key(block)) == (not shuffle)


def test_batches_in_an_order_outlive_their_blocks_room(small_data):
    """A prefetched batch of one block is in use while the next block is read into the same buffer."""
    reader = SplitReader(small_data, "train", 700)
    buffer = reader.buffer()
    kept, expected = [], []
    for block in reader.blocks:
        order = shuffled(1, block.start, size=block.rows)
        kept += list(batches_in(order, reader.read(block, buffer), 128))
        fresh = reader.read(block)
        expected += [fresh.ids[order], fresh.dense[order], fresh.labels[order]]
    for name, column in (("ids", 0), ("dense", 1), ("labels", 2)):
        np.testing.assert_array_equal(
            np.concatenate([getattr(batch, name) for batch in kept]), np.concatenate(expected[column::3])
        )


@pytest.mark.parametrize("ahead", [False, True], ids=["", "read ahead"])
@pytest.mark.parametrize("batch_size", [1, 64, 128, 600, 1024, 3000])
def test_a_cut_batch_outlives_the_cut_of_the_next(small_data, monkeypatch, batch_size, ahead):
    """A batch is used while the next is cut, from the next block too. No more than two buffers are used, or three if
    what reads ahead is told all ids, in their order: before they are used, and those of a buffer more in each block.
    """
    monkeypatch.setattr(BatchCutter, "ROWS", 500)
    reader = SplitReader(small_data, "train", 1700)
    buffer, before, found, places = reader.buffer(), None, 0, set()
    told, used, rows = [], [], max(1, 500 // batch_size) * batch_size
    cutter = BatchCutter(buffer, batch_size, (lambda rows: told.extend(rows.ids.tolist())) if ahead else None)
    for number in (1, 0, 1):
        order = shuffled(1, 3, number, size=reader.blocks[number].rows)[3:]
        fresh, left = list(batches_in(order, reader.read(reader.blocks[number]), batch_size)), len(order)
        for batch, expected in zip(
            cutter.batches(order, reader.read(reader.blocks[number], buffer)), fresh, strict=True
        ):
            for one, other in ((batch, expected), before or (batch, expected)):
                for name in ("ids", "dense", "labels"):
                    np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
            before, found = (batch, expected), found + 1
            used += batch.ids.tolist()
            left -= len(batch)
            assert not ahead or min(left, rows) <= len(told) - len(used) <= 2 * rows
            places.add(batch.labels.ctypes.data // 4)
    assert found == sum(-(-(reader.blocks[number].rows - 3) // batch_size) for number in (1, 0, 1))
    assert len(places) <= (3 if ahead else 2) * max(1, 500 // batch_size)
    assert not ahead or told == used


@pytest.fixture(scope="module")
def small_data_block(small_data):
    reader = SplitReader(small_data, "test", 65_536)
    return reader.read(reader.blocks[0])


@given(st.integers(1, 10**9), st.integers(1, 512), st.integers(1, 4096))
def test_blocks_are_whole_batches_and_enough_for_all_threads(rows, threads, batch_size):
    options = DataOptions("d", batch_size=batch_size, block_rows=max(65_536, batch_size))
    size = suit_block_rows(options, rows, threads)
    assert size % batch_size == 0
    assert batch_size <= size <= options.block_rows
    assert size == batch_size or size * 8 * threads <= rows


def test_a_resumed_position_may_have_more_pieces_than_blocks(small_data):
    """Such as one that was split for many threads."""
    options = FeedOptions(DataOptions(str(small_data)), Topology(trainers=1, threads=1), 1, 1, True)
    reader, pieces = SplitReader(small_data, "train", 65_536), [Piece(0, 2 * k, 2 * k + 2) for k in range(1_000)]
    begun = tuple(StartedPiece(0, 0, piece) for piece in pieces[:2])
    assert most_pieces(options, reader, Position(0, 65_536, True, begun, tuple(pieces[2:]))) == 1_000
    assert most_pieces(options, reader, Position(0)) < 1_000


@pytest.mark.parametrize("per_pass", [1, 3, 5])
def test_each_part_of_a_pass_has_blocks_enough_for_all_threads(small_data, per_pass):
    """Else threads idle at its end, while the last ones train on whole blocks."""
    data, topology = DataOptions(str(small_data), batch_size=16), Topology(trainers=2, threads=2)
    reader = SplitReader(small_data, "train", data.block_rows)
    options = FeedOptions(data, topology, 1, per_pass, True)
    begin = Deal(0, 0, Position(0))
    feed = Feed(options, 0, reader, {0, 1, 2}, begin, ProcessMemory())
    for part in feed.parts():
        assert len(feed.position.waiting) >= 8 * topology.trainers * topology.threads
        feed.position = replace(feed.position, waiting=())  # as if trained on
        assert part < per_pass
    assert feed.position.part == per_pass


def test_every_example_has_a_number_of_its_own_whoever_trains_on_it(small_data):
    """By thread or by another cut of the same blocks; other numbers in the next pass, and with another seed."""

    def numbers(seed, a_pass, threads):
        data = DataOptions(str(small_data), batch_size=16, passes=2)
        reader = SplitReader(small_data, "train", 64)
        waiting = tuple(Piece(k, 0, block.rows) for k, block in enumerate(reader.blocks))
        begin = Deal(0, 0, Position(a_pass, 64, True, (), waiting).for_others(threads, 16))
        options = FeedOptions(data, Topology(threads=threads), seed, 1, False)
        feed, found = Feed(options, 0, reader, set(range(9)), begin, ProcessMemory()), {}
        next(feed.parts())
        streams = [feed.batches(k, feed.dispatcher.next_block, lambda: False) for k in range(threads)]
        for batch in chain.from_iterable(zip_longest(*streams)):
            for k in range(len(batch) if batch else 0):
                assert batch.first_example + k not in found
                found[batch.first_example + k] = (*batch.dense[k], *batch.ids[k])
        assert len(found) == reader.rows
        return found

    assert numbers(1, 0, 1) == numbers(1, 0, 3)
    for others in (numbers(1, 1, 1), numbers(2, 0, 1)):
        assert others.keys() != numbers(1, 0, 1).keys()


def dealt(options, order, threads, generator):
    """All blocks as they are dealt when threads ask in some order, each until nothing is left."""
    handout, asking, given_out = BlockDispatcher(options, list(order), threads), set(range(threads)), []
    while asking:
        asker = generator.choice(sorted(asking))
        block = handout.next_block(int(asker))
        if block == NOTHING_LEFT:
            asking.remove(asker)
        else:
            given_out.append((int(asker), block))
    assert handout.log == given_out
    return given_out


@given(st.sampled_from([STATIC, DYNAMIC]), st.integers(0, 50), st.integers(1, 8), st.integers(0, 99))
def test_every_block_is_dealt_once_whoever_asks_when(options, blocks, threads, seed):
    generator = np.random.default_rng(seed)
    order = [int(b) for b in generator.permutation(blocks)]
    given_out = dealt(options, order, threads, generator)
    assert sorted(b for _, b in given_out) == list(range(blocks))
    if options is STATIC:
        for thread in range(threads):
            assert [b for asker, b in given_out if asker == thread] == order[thread::threads]
    else:
        assert [b for _, b in given_out] == order


def test_static_blocks_are_dealt_to_lanes_only():
    """Of six trainers with two threads each, the first of each pair reads."""
    topology = Topology(6, 2, group=2, homes="first")
    handout = BlockDispatcher(STATIC, list(range(12)), topology.lanes, lane_of=topology.lane_of)
    assert [handout.next_block(asker) for asker in (0, 1, 4, 5, 8, 9)] == [0, 1, 2, 3, 4, 5]
    assert [handout.next_block(asker) for asker in (4, 0)] == [8, 6]


@given(st.sampled_from([STATIC, DYNAMIC]), st.integers(0, 40), st.integers(0, 60), st.integers(1, 5), st.integers(1, 5))
def test_after_a_restart_only_the_rest_is_dealt(options, blocks, asked, threads_before, threads_after):
    before = BlockDispatcher(options, list(range(blocks)), threads_before)
    first = [before.next_block(k % threads_before) for k in range(asked)]
    after = BlockDispatcher(options, before.waiting(), threads_after)
    rest = [after.next_block(k % threads_after) for k in range(threads_after * (blocks + 1))]
    assert sorted(b for b in first + rest if b != NOTHING_LEFT) == list(range(blocks))
    assert [b for _, b in after.log] == [b for b in rest if b != NOTHING_LEFT]


@pytest.mark.parametrize("options", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_a_block_that_is_not_ready_is_waited_for_and_the_order_stays(options):
    ready, order = {4, 2}, [4, 0, 2]
    handout = BlockDispatcher(options, order, 1, ready.__contains__)
    assert [handout.next_block(0) for _ in range(3)] == [4, NOT_YET, NOT_YET]
    ready.add(0)
    assert [handout.next_block(0) for _ in range(3)] == [0, 2, NOTHING_LEFT]


def test_a_flipped_bit_of_any_column_is_found(small_data, tmp_path):
    data = Path(shutil.copytree(small_data, tmp_path / "copy"))
    reader = SplitReader(data, "train", 640)
    path = data / reader.shards[1].file
    content = path.read_bytes()
    with h5py.File(path) as file:
        offsets = [file[name].id.get_offset() for name in ("ids", "dense", "label")]
    for offset in offsets:
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
        reader.check()  # which does not read contents
        with pytest.raises(DataError, match=r"shard-00001\.h5: damaged: the checksum of its columns"):
            reader.verify(1)
    path.write_bytes(content)
    for shard in range(len(reader.shards)):
        reader.verify(shard)


@given(st.lists(st.integers(0, 20)), st.sets(st.integers(0, 20)), st.integers(1, 5))
def test_every_shard_is_one_trainers_to_check_in_the_order_of_need(needed, checked, trainers):
    shares = [share(needed, checked, trainer, trainers) for trainer in range(trainers)]
    order = [shard for shard in dict.fromkeys(needed) if shard not in checked]
    assert sorted(shard for each in shares for shard in each) == sorted(order)
    for each in shares:
        assert [order.index(shard) for shard in each] == sorted(order.index(shard) for shard in each)
    assert all(abs(len(a) - len(b)) <= 1 for a in shares for b in shares)


def test_shuffling_depends_on_seed_pass_and_block_alone():
    def orders(options):
        return [block_order(options, seed, a_pass, 30) for seed in (1, 2) for a_pass in (0, 1)]

    shuffling = orders(DYNAMIC)
    assert shuffling == orders(STATIC)
    assert len({tuple(order) for order in shuffling}) == 4
    assert all(sorted(order) == list(range(30)) for order in shuffling)
    assert orders(DataOptions("d", shuffle=False)) == [list(range(30))] * 4


def test_the_shuffle_is_the_same_in_every_version():
    """Checkpoints hold places in it: a resumed run must meet the order that it left."""
    assert shuffled(1, 2, 0, 3, size=8).tolist() == [7, 4, 3, 0, 6, 1, 5, 2]


def test_a_shard_that_is_gone_or_cut_is_named(small_data, tmp_path):
    data = tmp_path / "copy"
    shutil.copytree(small_data, data)
    reader = SplitReader(data, "train", 640)
    reader.check()
    shard = data / "train" / "shard-00001.h5"
    content = shard.read_bytes()
    shard.write_bytes(content[:-100])
    with pytest.raises(DataError, match=r"shard-00001\.h5: .* bytes, the manifest says"):
        reader.check()
    shard.unlink()
    with pytest.raises(DataError, match=r"shard-00001\.h5: shard is in the manifest but not on disk"):
        reader.check()


@pytest.mark.parametrize(
    ("override", "split"), [("evaluate.final=none", "validation"), ("evaluate.split=none", "test")]
)
def test_a_shard_of_what_is_evaluated_later_is_missed_before_training(small_data, tmp_path, override, split):
    data = tmp_path / "copy"
    shutil.copytree(small_data, data)
    (data / split / "shard-00000.h5").unlink()
    run_file = tmp_path / "run.toml"
    run_file.touch()
    wanted = (f"data.folder={data}", "topology.trainers=1", "topology.embedding_ps=0", "sync.algorithm=none")
    with pytest.raises(DataError, match=rf"{split}/shard-00000\.h5: shard is in the manifest but not on disk"):
        run_folder.check(config.load(run_file, (*wanted, override)), 1)
    nothing = ("evaluate.split=none", "evaluate.final=none")
    assert run_folder.check(config.load(run_file, (*wanted, *nothing)), 1).rows == 6_000


def test_a_split_that_is_not_there_is_named(small_data):
    says = "no split 'trian' in this data set; it has train, validation, test; did you mean 'train'"
    with pytest.raises(DataError, match=re.escape(f"{small_data}: {says}")):
        SplitReader(small_data, "trian", 640)
