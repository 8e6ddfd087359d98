"""How fast a worker thread reads: blocks of shards, shuffled and cut into batches by what does so in training."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypedDict

from ssmpi.bench.harness.windows import median
from ssmpi.bench.throughput.contenders import SSMPI, Contender, in_fresh_process
from ssmpi.bench.throughput.turns import Harness
from ssmpi.config import load
from ssmpi.data import columns
from ssmpi.data.position import Piece
from ssmpi.data.reader import SplitReader
from ssmpi.data.stream import Stream


class Reading(TypedDict):
    """Rows and bytes per CPU second of the thread, medians of turns; ``row_bytes``: what shards hold of a row, on
    average.
    """

    rows: float
    bytes: float
    row_bytes: float


def reading(harness: Harness) -> dict[str, Reading]:
    """By batch size. Shards are in the page cache if it has room for them: a turn before the first one reads them."""
    found = {}
    for size in sorted({min(harness.batches), max(harness.batches)}):
        overrides = Contender(SSMPI, size, harness.cores).overrides
        turns = harness.rounds * harness.timing.windows
        found[f"batch {size}"] = in_fresh_process(read, harness.run_file, overrides, harness.timing.seconds, turns)
    return found


def read(run_file: Path, overrides: tuple[str, ...], seconds: float, turns: int) -> Reading:
    """Read the training rows in turns of so many CPU seconds, or of a pass if that is longer, after one that is not
    counted.
    """
    from ssmpi.trainer.build_trainer import cursor_options  # here, because the parent process does not need torch

    config = load(run_file, overrides)
    folder, split = Path(config.data.folder), config.data.train_split
    whole = SplitReader(folder, split, config.data.block_rows)
    reader = SplitReader(folder, split, cursor_options(config).block_rows(whole.rows))
    stream = Stream(config.data, config.run.seed, ahead=False)
    pieces = [Piece(number, 0, block.rows) for number, block in enumerate(reader.blocks)]

    def a_pass() -> int:
        next_piece = partial(next, iter(pieces), None)
        return sum(len(batch) for batch in stream.batches(reader, 0, next_piece, lambda: False))

    a_pass()
    row_bytes = bytes_of(reader) / reader.rows
    rows = median([rate(a_pass, seconds) for _ in range(turns)])
    return {"rows": rows, "bytes": rows * row_bytes, "row_bytes": row_bytes}


def rate(work: Callable[[], int], seconds: float) -> float:
    """How much ``work`` does per CPU second of this thread, repeated for at least so many."""
    began, done, spent = time.thread_time(), 0, 0.0
    while spent < seconds:
        done += work()
        spent = time.thread_time() - began
    return done / spent


def bytes_of(reader: SplitReader) -> int:
    """What the columns of a split's shards take on disk."""
    places = (columns.extents(reader.folder, entry, reader.manifest) for entry in reader.shards)
    return sum(size for found in places for _, size in found.values())
