"""Reads prepared shards in row blocks. Small background reads starve beside busy Python threads, so a worker reads its
own blocks inline, large ones, and cuts its batches out of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path

import numpy as np

from ssmpi.data import columns
from ssmpi.data.batch import Batch
from ssmpi.data.list_reader import ListReader
from ssmpi.data.schema import MAKE_AGAIN, DatasetManifest, open_shard, read_manifest
from ssmpi.runtime.bags import Bags, IdRoom
from ssmpi.runtime.errors import DamageError, DataError
from ssmpi.runtime.settings import COUNT, require, within

ComingRows = Callable[[Batch], None]  # with the rows of batches to come


@dataclass(frozen=True)
class DataOptions:
    """The ``[data]`` section: the rows to train on, and their order."""

    folder: str
    """Folder made by ``ssmpi-prepare``."""
    batch_size: int = 128
    """Rows of a batch. Each worker thread trains on its own batches."""
    passes: int = 1
    """Passes over the data."""
    handout: str = "dynamic"
    """Who gets a block of rows: ``dynamic``, the next free thread; ``static``, threads in a fixed rotation."""
    block_rows: int = 65536
    """Most rows of a block, the unit that is read and assigned to threads."""
    shuffle: bool = True
    """Permute the order of blocks and the rows inside them, differently in every pass."""
    train_split: str = "train"
    """Split of the data to train on."""

    def __post_init__(self) -> None:
        require(bool(self.folder), "folder must not be empty: name what 'ssmpi-prepare' made")
        within("batch_size", self.batch_size, 1, COUNT)
        within("passes", self.passes, 1, COUNT)
        within("block_rows", self.block_rows, 1, COUNT)
        require(self.handout in ("dynamic", "static"), f"handout is 'dynamic' or 'static', got {self.handout!r}")
        require(
            self.block_rows >= self.batch_size,
            f"block_rows = {self.block_rows} is less than batch_size = {self.batch_size}: raise block_rows",
        )


@dataclass(frozen=True)
class Block:
    """Rows ``[start, stop)`` of one shard."""

    shard: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


class SplitReader:
    """One split of a prepared folder, cut into blocks. Cheap to make; shards are opened when first read."""

    def __init__(self, folder: Path, split: str, block_rows: int) -> None:
        self.folder = folder
        self.manifest: DatasetManifest = read_manifest(folder)
        try:
            self.shards = self.manifest.split(split).shards
        except DataError as error:
            raise DataError(f"{folder}: {error}") from None
        features = self.manifest.features
        if features.lists and features.keyed:
            raise DataError(
                f"{folder}: {features.list_names[0]} has lists of ids and {features.keyed[0]} has keys, and rows of "
                "both cannot be read yet: prepare the keyed features with a vocabulary, or the lists with one id a row"
            )
        self.rows = sum(entry.rows for entry in self.shards)
        self._lists = ListReader(self.manifest.features)
        self._found: dict[int, dict[str, tuple[int, int]]] = {}
        self.blocks = [
            Block(s, start, min(start + block_rows, entry.rows))
            for s, entry in enumerate(self.shards)
            for start in range(0, entry.rows, block_rows)
        ]

    def check(self) -> None:
        """Raise DataError unless every shard is on disk in its size and the first one opens; contents are not read."""
        for entry in self.shards:
            path = self.folder / entry.file
            if not path.is_file() or path.stat().st_size != entry.bytes:
                open_shard(self.folder, entry, self.manifest).close()  # says what is wrong
        if self.shards:
            open_shard(self.folder, self.shards[0], self.manifest).close()

    def verify(self, shard: int) -> None:
        """Read one shard whole and raise DataError unless its contents are those that were prepared."""
        columns.check(self.folder, self.shards[shard], self.manifest)

    def buffer(self, rows: int | None = None) -> Batch:
        """Arrays for so many rows, without labels, or for any block: new ones would have to be paged in each time."""
        if rows is None:
            rows = max((block.rows for block in self.blocks), default=0)
        features = self.manifest.features
        dense, labels = np.empty((rows, len(features.dense)), np.float32), np.full(rows, np.nan, np.float32)
        keys = np.empty((rows, len(features.keyed)), np.int64)
        if not features.lists:
            return Batch(np.empty((rows, len(features.one_id)), np.int32), dense, labels, keys)
        room = IdRoom(int(rows * sum(features.ids_per_row)), weighted=features.has_weights)
        return Batch(
            Bags(room, np.zeros(rows * len(features.sparse) + 1, np.int64), len(features.sparse)), dense, labels, keys
        )

    def blank(self, rows: int) -> Batch:
        """Rows of zeros, with one id of each sparse feature, lists included, or of keyed ones the key 1."""
        batch = self.buffer(rows)
        batch.dense[:], batch.labels[:], batch.keys[:] = 0.0, 0.0, 1
        if isinstance(batch.ids, Bags):
            batch.ids.set_zeros()
        else:
            batch.ids[:] = 0
        return batch

    def means(self, most: int = 8192) -> np.ndarray:
        """Means of the dense features over the first rows, at most so many of the first shard; float32 (features,)."""
        first = Block(0, 0, min(most, self.shards[0].rows))
        return self.read(first, self.buffer(first.rows)).dense.mean(axis=0, dtype=float).astype(np.float32)

    def read(self, block: Block, buffer: Batch | None = None) -> Batch:
        """Read one block, into ``buffer``, which is overwritten, or into new arrays."""
        path = self.folder / self.shards[block.shard].file
        out = (buffer or self.buffer()).part(0, block.rows)
        try:
            places = self._places(block.shard)
            with path.open("rb", buffering=0) as file:
                if isinstance(out.ids, Bags):
                    self._lists.read(file, places, block.start, out.ids)
                elif "ids" in places:
                    columns.read_rows(file, places["ids"][0], block.start, out.ids)
                for name, into in (("dense", out.dense), ("keys", out.keys)):
                    if name in places:
                        columns.read_rows(file, places[name][0], block.start, into)
                if self.manifest.labelled:
                    labels = np.empty(block.rows, np.uint8)
                    columns.read_rows(file, places["label"][0], block.start, labels)
                    out.labels[:] = labels
        except OSError as error:
            raise DataError(f"{path}: rows {block.start} to {block.stop} cannot be read ({error})") from error
        except columns.ListError as error:
            raise DamageError(path, str(error), MAKE_AGAIN) from error
        return out

    def _places(self, shard: int) -> dict[str, tuple[int, int]]:
        """Where the columns of a shard lie, which is opened for that once."""
        if shard not in self._found:
            self._found[shard] = columns.extents(self.folder, self.shards[shard], self.manifest)
        return self._found[shard]


def batches(block: Batch, batch_size: int) -> Iterator[Batch]:
    """Cut a block into batches, which are views of it; the last batch may be smaller."""
    for start in range(0, len(block), batch_size):
        yield block.part(start, start + batch_size)


def batches_in(order: np.ndarray, block: Batch, batch_size: int) -> Iterator[Batch]:
    """Cut a block into batches of the rows in ``order``, as copies: the block may be overwritten after the last one."""
    for start in range(0, len(order), batch_size):
        batch = block.like(min(batch_size, len(order) - start))
        batch.take(order, start, block)
        yield batch


class BatchCutter:
    """As ``batches_in``, into two buffers in turn: a batch is valid while the next one is used, but not longer. A
    buffer holds as many whole batches as fit in ``ROWS``, so that one compiled call cuts them all. If there is a
    ``read_ahead``, it is called with the rows of a buffer before those of the previous one are used.
    """

    ROWS = 1024  # they are in cache until they are used

    def __init__(self, like: Batch, batch_size: int, read_ahead: ComingRows | None = None) -> None:
        self._batch_size, self._rows = batch_size, max(1, self.ROWS // batch_size) * batch_size
        self._read_ahead = read_ahead
        buffers = [like.like(self._rows) for _ in range(3 if read_ahead else 2)]
        self._buffers = cycle([(buffer, list(batches(buffer, batch_size))) for buffer in buffers])

    def batches(self, order: np.ndarray, block: Batch) -> Iterator[Batch]:
        """The batches of the rows in ``order``."""
        found = (self._cut(order, start, block) for start in range(0, len(order), self._rows))
        return chain.from_iterable(one_ahead(found) if self._read_ahead else found)

    def _cut(self, order: np.ndarray, start: int, block: Batch) -> Iterable[Batch]:
        buffer, found = next(self._buffers)
        count = min(self._rows, len(order) - start)
        if count < self._rows:
            buffer = buffer.part(0, count)
            found = list(batches(buffer, self._batch_size))
        buffer.take(order, start, block)
        if self._read_ahead:
            self._read_ahead(buffer)
        return found


def one_ahead(cuts: Iterator[Iterable[Batch]]) -> Iterator[Iterable[Batch]]:
    """The same, each after the next one has been cut."""
    waiting = next(cuts, None)
    while waiting is not None:
        found, waiting = waiting, next(cuts, None)
        yield found


def suit_block_rows(options: DataOptions, rows: int, shares: int) -> int:
    """Rows per block so that each of the ``shares`` (threads times parts of a pass) gets 8 blocks: whole batches, at
    most ``block_rows``.
    """
    fair = max(1, rows // (8 * shares))
    return max(1, min(options.block_rows, fair) // options.batch_size) * options.batch_size


def shuffled(seed: int, *key: int, size: int) -> np.ndarray:
    """A permutation of ``range(size)`` that depends on ``seed`` and ``key`` alone."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *key]))).permutation(size)
