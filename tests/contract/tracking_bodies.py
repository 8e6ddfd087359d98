"""What the ranks do in ``test_tracking``; apart from it, because ranks need no torch."""

import time

import numpy as np
from embedding_bodies import CARDINALITIES, DIM, SEED, STEPS, WAITING, batch_of, in_turn
from rows import row_options

from ssmpi.embedding.client import Lookups
from ssmpi.embedding.placement import place
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.shards import remote_tables
from ssmpi.embedding.table import Arena
from ssmpi.embedding.trackers import Tracking, scope_of
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.topology import Role

TRACKING = Tracking("mfu", 0.5)


def count(world, shared):
    """On an embedding PS: how often each of its rows was looked up, and the samples that it was told of. On the first
    trainer: what the PSs have told it, each the samples that it knew of.
    """
    options = row_options(DIM, rate=0.3, shared_memory=shared)
    placement = place(CARDINALITIES, world.topology.embedding_ps)
    if world.role is Role.EMBEDDING_PS:
        return count_on_server(world, options, placement)
    tables = remote_tables(world.embedding, placement, options, WAITING, tracking=TRACKING)
    assert [bool(shard.rows) for shard in tables.shards] == [shared] * world.topology.embedding_ps
    lookups, told = Lookups(tables, thread=0), set()

    def steps():
        for step in range(STEPS):
            ids, gradients = batch_of(world.rank, step)
            rows = lookups.pull(ids)
            lookups.push(rows, gradients)
        tables.drain()
        deadline = time.monotonic() + WAITING.time_limit_seconds
        while world.rank == 0 and len(told) < world.topology.embedding_ps and time.monotonic() < deadline:
            told.update((line["ps"], line["samples"]) for line in tables.exchange_status(4000))
            time.sleep(0.001)

    in_turn(world, steps)
    tables.goodbye()
    return sorted(told)


def count_on_server(world, options, placement):
    scope, service, memory = scope_of(placement, world.index), Service(world.embedding), ProcessMemory()
    rows, counts = (memory.part(name, shared=options.settings.shared_memory) for name in ("rows", "accesses"))
    arena = Arena(options, placement, world.index, SEED, rows)
    place_of_counts = counts.allocate(TRACKING.bytes_for(scope))
    place_of_counts[:] = 0
    tracker = TRACKING.over(scope, place_of_counts)
    arena.set_observer(tracker.observe)
    server = EmbeddingServer(arena, service, address=rows.address, counts=counts.address)
    server.take_lines = lambda: [{"samples": server.samples}]
    service.serve(world.topology.trainers, server.handle)
    return tracker.counts.tolist(), server.samples


def counts_of(placement, trainers):
    """The same by hand: each id of each batch is an access."""
    found = [np.zeros(placement.rows_of(server), int) for server in range(placement.servers)]
    for rank in range(trainers):
        for step in range(STEPS):
            ids, _ = batch_of(rank, step)
            for table, column in enumerate(ids.T):
                for number in column.tolist():
                    part = next(p for p in placement.parts if p.table == table and (number - p.first) % p.stride == 0)
                    found[part.owner][part.base + (number - part.first) // part.stride] += 1
    return [counts.tolist() for counts in found]
