"""What the ranks do in ``test_embedding``; apart from it, because ranks need no torch and importing it takes long."""

from dataclasses import replace

import numpy as np
from rows import row_options

from ssmpi.embedding.client import Lookups
from ssmpi.embedding.placement import place
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.shards import local_tables, remote_tables
from ssmpi.embedding.table import Arena
from ssmpi.runtime.mpi import failure
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.mpi.waiting import WaitOptions, wait
from ssmpi.runtime.topology import Role, Topology

WAITING = WaitOptions(time_limit_seconds=60)
IN_REACH = True  # whether PSs are on this host
CARDINALITIES = (3, 700, 40, 1, 90)  # the second is split as soon as there are two PSs
FEATURES, DIM, SEED, BATCH, STEPS = len(CARDINALITIES), 6, 11, 17, 4
SGD = row_options(DIM, optimizer="sgd", rate=0.05, shared_memory=False)
ADAGRAD = row_options(DIM, rate=0.3, shared_memory=False)
WEIGHTED = row_options(DIM, weight=True, rate=0.3, shared_memory=False)
WEIGHTS = row_options(0, weight=True, rate=0.3, shared_memory=False)
LOCAL = Topology(trainers=1, embedding_ps=0)
REMOTE = Topology(trainers=2, threads=2, embedding_ps=2)


def other(options, **settings):
    """The same with other settings."""
    return replace(options, settings=replace(options.settings, **settings))


def batch_of(*key, width=DIM):
    """ids int32 (batch, features), with many repeats, and gradients float32 (batch, features, width)."""
    generator = np.random.default_rng(key)
    ids = (generator.random((BATCH, FEATURES)) ** 3 * CARDINALITIES).astype(np.int32)
    return ids, generator.normal(size=(BATCH, FEATURES, width)).astype(np.float32)


def on_trainers(world, options, work):
    """``work(transport, placement)`` on trainers while the embedding PSs serve; its result."""
    placement = place(CARDINALITIES, max(1, world.topology.embedding_ps))
    if world.role is Role.EMBEDDING_PS:
        service = Service(world.embedding)
        memory = ProcessMemory().part("rows", shared=options.settings.shared_memory)
        arena = Arena(options, placement, world.index, SEED, memory)
        server = EmbeddingServer(arena, service, address=memory.address)
        service.serve(world.topology.trainers, server.handle)
    if world.role is not Role.TRAINER:
        return None
    if world.topology.embedding_ps:
        transport = remote_tables(world.embedding, placement, options, WAITING)
        assert [bool(shard.rows) for shard in transport.shards] == [
            options.settings.shared_memory and IN_REACH
        ] * world.topology.embedding_ps
    else:
        transport = local_tables(Arena(options, placement, 0, SEED))
    result = work(transport, placement)
    transport.goodbye()
    return result


def rest(world, transport):
    """Every push of every trainer has been applied."""
    transport.drain()
    wait(world.trainers.ibarrier(), WAITING, "the others")


def in_turn(world, work):
    """Trainers one after the other, so that the result is one and the same."""
    for trainer in range(world.trainers.size):
        if trainer == world.rank:
            work()
        wait(world.trainers.ibarrier(), WAITING, "the others")


def train_in_turn(world, options):
    def work(transport, placement):
        pulled, lookups = [], Lookups(transport, thread=0)

        def steps():
            for step in range(STEPS):
                ids, gradients = batch_of(world.rank, step, width=options.layout.width)
                lookup = lookups.pull(ids)
                pulled.append(lookup.values.copy())
                lookups.push(lookup, gradients, factor=0.5 if step == 1 else 1.0)
            transport.drain()

        in_turn(world, steps)
        everything = Lookups(transport, thread=1)
        ids = np.arange(max(CARDINALITIES))[:, None] % CARDINALITIES
        return pulled, everything.pull(ids.astype(np.int32)).values.copy()

    return on_trainers(world, options, work)


AT_ONCE = 20  # steps


def whole_rows(*key):
    """A batch whose gradients are 1 everywhere, so that a row tells how often it was updated."""
    ids, gradients = batch_of(*key)
    return ids, np.ones_like(gradients)


def train_in_step(world, options):
    """All threads of all trainers push once in a step, at once, and none begins the next one before all are done."""

    def work(transport, placement):
        lookups = [Lookups(transport, k) for k in range(world.topology.threads)]

        def push(thread, step):
            ids, gradients = whole_rows(world.rank, thread, step)
            lookups[thread].push(lookups[thread].pull(ids), gradients)

        for step in range(AT_ONCE):
            threads = [failure.start(world, f"worker {k}", push, k, step) for k in range(world.topology.threads)]
            for thread in threads:
                thread.join()
            rest(world, transport)
        ids = np.arange(max(CARDINALITIES))[:, None] % CARDINALITIES
        return Lookups(transport, thread=0).pull(ids.astype(np.int32)).values.copy()

    return on_trainers(world, options, work)


def train_at_once(world, options):
    def work(transport, placement):
        def steps(thread):
            lookups = Lookups(transport, thread)
            for step in range(AT_ONCE):
                ids, gradients = batch_of(world.rank, thread, step)
                for batch, lookup in lookups.prefetched([Ids(ids), Ids(ids[:5])]):
                    lookups.push(lookup, gradients[: len(batch.ids)])

        threads = [failure.start(world, f"worker {k}", steps, k) for k in range(world.topology.threads)]
        for thread in threads:
            thread.join()
        rest(world, transport)
        ids = np.arange(max(CARDINALITIES))[:, None] % CARDINALITIES
        return Lookups(transport, thread=0).pull(ids.astype(np.int32)).values.copy()

    return on_trainers(world, options, work)


class Ids:
    """As much of a batch as ``prefetched`` needs."""

    def __init__(self, ids):
        self.ids, self.first_example = ids, 0


def pull_bad_id(world, options):
    def work(transport, placement):
        ids = batch_of(0)[0]
        ids[3, 2] = 40
        Lookups(transport, thread=0).pull(ids)

    return on_trainers(world, options, work)
