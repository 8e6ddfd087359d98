"""Makes the parts of a trainer, each from the settings and from the parts made before it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi import sync
from ssmpi.checkpoint.start import Start
from ssmpi.comm.failure import start
from ssmpi.comm.shared_memory import Memory
from ssmpi.core.log import during, log
from ssmpi.data.cursor import CursorOptions, DataCursor
from ssmpi.data.position import Position
from ssmpi.data.reader import SplitReader
from ssmpi.model import processor
from ssmpi.model.optim import DenseOptimizer, dense_optimizer
from ssmpi.model.replica import Replica
from ssmpi.report.results import EarlierResults, Results
from ssmpi.roles.precompile import compile_kernels
from ssmpi.roles.progress import Progress
from ssmpi.roles.tables import Tables, placing

if TYPE_CHECKING:
    from ssmpi.checkpoint.trainer_state import Checkpoint
    from ssmpi.comm.world import World
    from ssmpi.config import Config
    from ssmpi.roles.control import Control


def check_host(config: Config, world: World) -> None:
    """Say, on one rank, what will make this host slow."""
    if world.oversubscribed:
        log.warning(world.oversubscribed)
    if config.model.precision == "bf16" and world.index == 0 and processor.without_bfloat16():
        log.warning(processor.SLOW_BFLOAT16)


def tables(config: Config, world: World, cardinalities: tuple[int, ...], start: Start) -> Tables:
    """The embedding tables: fresh, kept, or with the rows of a saved model."""
    with during(placing(cardinalities, config.topology.embedding_ps, start)):
        return Tables(config, world, cardinalities, start)


def fresh_replica(config: Config, reader: SplitReader, seed: int, memory: Memory) -> Replica:
    """A replica in ``memory`` with initial values; ``reader`` has the rows that it will be trained on."""
    means = reader.means() if config.model.center_inputs else None
    return Replica(config.network, config.model.precision, seed, memory, means)


def dense_model(config: Config, reader: SplitReader, start: Start) -> tuple[Replica, DenseOptimizer]:
    """The replica, fresh, kept, or with the weights of a saved model, and its optimizer; their kernels are compiled."""
    memory, shared = start.memory, config.sync.transport != "messages"
    replica = fresh_replica(config, reader, config.run.seed, memory.part("replica", shared=shared))
    if start.checkpoint:
        replica.vector[:] = replica.load(start.checkpoint / "dense.h5")
    optimizer = dense_optimizer(config.dense, replica, memory.part("dense optimizer", shared=False))
    with during("loading kernels, compiling those that are new here"):
        compile_kernels(config, replica, optimizer)
    return replica, optimizer


def progress(config: Config, rows: int, saved: Checkpoint | None) -> Progress:
    """The counters of a trainer of a run over so many rows."""
    topology, before = config.topology, saved.state["examples"] if saved else 0
    made = Progress(topology.threads, topology.trainers, config.schedule, before, rows * config.data.passes)
    if config.run.record_losses:
        made.losses = []
    return made


def synchronization(
    config: Config, world: World, replica: Replica, local: sync.LocalTrainer, saved: Checkpoint | None
) -> tuple[list[sync.Synchronizer], sync.Pace]:
    """The synchronizers of a trainer, and when they run their rounds."""
    options, threads = config.sync, config.topology.threads
    if saved and saved.state["examples"]:
        options = replace(options, warmup_steps=0)  # over since the first rest, at the latest
    peers = sync.Peers(world.trainers, world.center, config.waiting, local)
    synchronizers = sync.make(options, replica.vector, peers, threads)
    return synchronizers, sync.pace_of(synchronizers, options, threads, partial(start, world), world.shadow_share)


def cursor(config: Config, trainer: int, reader: SplitReader, control: Control, saved: Checkpoint | None) -> DataCursor:
    """One trainer's way through the data, from the start or from a checkpoint."""
    position = Position(0)
    if saved:
        position = saved.position(config.topology, config.data.batch_size)
        control.checked.update(saved.state.get("checked", ()))
    options = CursorOptions(
        config.data, config.topology, config.run.seed, config.evaluate.per_pass, config.embedding.prefetch
    )
    return DataCursor(options, trainer, reader, position, control.checked)


def results(config: Config, folder: Path, rows: int, saved: Checkpoint | None) -> Results:
    """What the first trainer writes of a run over so many rows."""
    earlier = EarlierResults(saved.log(), saved.state["evaluations"]) if saved else None
    return Results(folder, config.run, config.topology, rows * config.data.passes, earlier)
