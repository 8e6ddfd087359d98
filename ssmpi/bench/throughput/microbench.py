"""Microbenchmarks in one process: the embedding PS's kernels, a bare loop over the same memory, the reader."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import numpy as np
from numba import njit

from ssmpi.bench.harness.rows import BatchSource
from ssmpi.config import load
from ssmpi.data.reader import BatchCutter, SplitReader, shuffled
from ssmpi.embedding import wire
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.local_tables import LocalTables
from ssmpi.embedding.placement import place
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.table import Arena

Rows = list[np.ndarray]


@njit(cache=True, nogil=True)
def touch(table: np.ndarray, rows: np.ndarray) -> float:
    """The lower bound of a pull and a push of ``rows`` int32 (n,): read each row once, then write each once."""
    total = np.float32(0.0)
    for k in range(rows.shape[0]):
        for j in range(table.shape[1]):
            total += table[rows[k], j]
    for k in range(rows.shape[0]):
        for j in range(table.shape[1]):
            table[rows[k], j] += np.float32(1e-6)
    return float(total)


class NoMessages:
    """The part of ``comm.service.Service`` that a handler needs, without a client."""

    def buffer(self, size: int) -> np.ndarray:
        """A buffer to fill."""
        return np.empty(size, np.uint8)

    def reply(self, dest: int, tag: int, buffer: np.ndarray) -> None:
        """Discard the reply."""


def table_rates(run_file: Path, overrides: tuple[str, ...], seconds: float) -> dict[str, float]:
    """Distinct rows pulled + pushed per core-second: with the server's handlers in this process, and with the bare
    loop.

    Both use the same table and the same rows, those of real batches.
    """
    config = load(run_file, overrides)
    source = BatchSource(config)
    placement = place(source.cardinalities, 1)
    arena = Arena(config.rows, placement, 0, config.run.seed)
    lookups = Lookups(LocalTables(arena), placement, config.rows, 0)
    rows: Rows = []
    for batch in source.batches(0):
        lookup = lookups.pull(batch.ids)
        rows.append(lookup.rows[: lookup.unique_count].copy())
    server = EmbeddingServer(arena, NoMessages())  # type: ignore[arg-type]
    pull, push = (wire.tag(kind, 0) for kind in (wire.PULL, wire.PUSH))
    pushes = [wire.push(1.0, r, np.full((r.size, config.rows.layout.width), 1e-6, np.float32)) for r in rows]

    def serve(k: int) -> None:
        server.handle(0, pull, rows[k].view(np.uint8))
        server.handle(0, push, pushes[k].view(np.uint8))

    sizes = [2 * r.size for r in rows]
    return {
        "handlers": rate(serve, sizes, seconds),
        "bare_loop": rate(lambda k: touch(arena.weights, rows[k]), sizes, seconds),
        "rows_per_batch": float(np.mean(sizes)) / 2,
        "table_bytes": float(arena.weights.nbytes + arena.state.nbytes),
    }


def rate(work: Callable[[int], object], sizes: list[int], seconds: float) -> float:
    """Units per CPU second of ``work(k)``, which processes ``sizes[k]`` units, cycling over k."""
    for k in range(len(sizes)):
        work(k)
    done, began, cpu = 0, time.monotonic(), time.thread_time()
    for k in cycle(range(len(sizes))):
        work(k)
        done += sizes[k]
        if time.monotonic() - began > seconds:
            break
    return done / (time.thread_time() - cpu)


def reader_rate(run_file: Path, overrides: tuple[str, ...], seconds: float) -> dict[str, float]:
    """Rows per core-second that a worker thread reads, shuffles and splits into batches, as in ``roles.trainer``."""
    config = load(run_file, overrides)
    reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
    buffer = reader.buffer()
    cutter = BatchCutter(buffer, config.data.batch_size)

    def read(number: int) -> None:
        block = reader.blocks[number]
        order = shuffled(config.run.seed, 2, 0, number, size=block.rows)
        for _ in cutter.batches(order, reader.read(block, buffer)):
            pass

    return {"rows": rate(read, [block.rows for block in reader.blocks], seconds)}
