"""An embedding PS rank: creates or loads its part of the tables and serves it until every trainer has said goodbye."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ssmpi import sync
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.table import ROWS, Arena
from ssmpi.embedding.trackers import SCAR, Scope, Tracker, scope_of
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import checkpoint_number
from ssmpi.runtime.host import cpu_usage
from ssmpi.runtime.host.host_memory import free_memory
from ssmpi.runtime.mpi import failure
from ssmpi.runtime.mpi.push_counts import AppliedPushes
from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.mpi.world import World
from ssmpi.state.checkpoint.arena_writer import MOST, ArenaWriter
from ssmpi.state.checkpoint.rows.newest import arena_in
from ssmpi.state.checkpoint.rows.row_store import RowStore, path_of, remove_beyond
from ssmpi.state.checkpoint.rows.saver import RowSaver
from ssmpi.state.checkpoint.store import Store
from ssmpi.state.recovery.row_saves import schedule_of
from ssmpi.state.recovery.run_record import RunRecord
from ssmpi.state.recovery.start import BEGINNING, Start
from ssmpi.trainer.tables import load_rows

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.runtime.mpi.shared_memory import Memory

COUNTS, COPY = "accesses", "saved rows"  # names in the memory of the rank
ENDING_SECONDS = 5.0  # for a save in progress
NO_SAVES = (
    "checkpoint.priority has no effect in this job: rows are saved only under 'ssmpi launch', which reloads them, and"
    " if recovery.memory_folder has space"
)


def serve_embeddings(config: Config, world: World, start: Start = BEGINNING) -> bool:
    """The whole life of an embedding PS."""
    folder = config.run.path
    arena, memory, keys = arena_in(start.memory, config, world.index, world.roles_here, start.checkpoint)
    load_rows(config, arena, start, world.index)
    shared = config.run.shared_memory
    scope = scope_of(arena.placement, world.index)
    counts = start.memory.part(COUNTS, shared=shared) if config.tracking.counts else None
    saving = config.saves_rows and start.memory.holds(ROWS)
    tracker = tracked(config, arena, scope, counts) if counts else None
    if saving and config.checkpoint.priority == "scar":
        tracker = scar(config, world, arena, scope, start)
    if tracker:
        arena.moved = tracker.moved
    applied = AppliedPushes(start.memory, world.embedding.size)
    start.memory.ready()
    world.start_heartbeat(config.waiting)
    service = Service(world.embedding)
    cpu_usage.set_up()
    address = counts.address if counts else None
    writer = ArenaWriter(world.same_role_here).prefault(arena, config.checkpoint)
    server = EmbeddingServer(arena, service, writer, memory.address, address, applied)
    server.keys = keys.address if keys else b""
    if sync.algorithm_of(config.sync).in_the_step:
        arena.settle(0)  # rows that a kill left behind: trainers count the steps that they take together from here
    if not saving:
        if config.checkpoint.priority != "none" and world.index == 0:
            log.warning(NO_SAVES)
        service.serve(config.topology.trainers, server.handle)
        return True
    server.checkpoint = max(map(checkpoint_number, Store(folder).committed()), default=0)
    store = RowStore(path_of(folder, world.index), arena, start.timeline)
    fraction = config.checkpoint.priority_fraction if tracker else 1.0
    earlier = RunRecord.read(folder).row_save_seconds
    schedule = schedule_of(config, arena.placement.most_rows, fraction, earlier)
    saver = RowSaver(store, tracker, server, start.memory, schedule, earlier)
    server.take_lines = saver.take_lines
    failure.start(world, "row saves", saver.run)
    try:
        service.serve(config.topology.trainers, server.handle)
    finally:
        saver.end()
    saver.stop(ENDING_SECONDS)
    if world.index == 0:
        remove_beyond(folder, config.topology.embedding_ps)
    return True


def tracked(config: Config, arena: Arena, scope: Scope, counts: Memory) -> Tracker:
    """The tracker that counts accesses, here and in the trainers that map ``counts``."""
    memory = counts.allocate(config.tracking.bytes_for(scope))
    if not counts.kept:
        memory[:] = 0
    tracker = config.tracking.over(scope, memory)
    arena.set_observer(tracker.observe)
    return tracker


def scar(config: Config, world: World, arena: Arena, scope: Scope, start: Start) -> Tracker:
    """The SCAR tracker, which keeps a copy of the weights; DataError if there is no memory for it."""
    copy, sharers = start.memory.part(COPY, shared=False), world.same_role_here
    needed, free = arena.weights.nbytes * sharers, free_memory() * MOST
    if needed > free and not copy.kept:
        raise DataError(
            f'checkpoint.priority = "scar" copies the weights: {needed / 1e9:.1f} GB for {sharers} embedding PSs of'
            f" this host (this one's {len(arena.weights):,} rows x {arena.weights.shape[1]} floats x"
            f" {arena.weights.itemsize} bytes), and {free / 1e9:.1f} GB are to be had ({MOST:.0%} of what is free): set"
            " it to 'mfu' or 'ssu', or use more hosts"
        )
    saved = copy.allocate(arena.weights.nbytes).view(arena.weights.dtype).reshape(arena.weights.shape)
    if not copy.kept:
        saved[:] = arena.weights
    return SCAR(scope, config.checkpoint.priority_fraction, arena.weights, saved)
