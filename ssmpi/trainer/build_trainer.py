"""Creates the parts of a trainer, each from the settings and the parts created before it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ssmpi import sync
from ssmpi.data.feed import Feed, FeedOptions
from ssmpi.data.position import Position
from ssmpi.data.reader import SplitReader
from ssmpi.data.trained_rows import Deal
from ssmpi.embedding.shards import Tables
from ssmpi.model import custom_network, processor
from ssmpi.model.optimizers import optimizer_of
from ssmpi.model.replica import Replica, dense_optimizer
from ssmpi.runtime.compiled import first_use
from ssmpi.runtime.files.log import during, log
from ssmpi.runtime.mpi.failure import start
from ssmpi.runtime.mpi.shared_memory import Memory
from ssmpi.runtime.protocols import DenseOptimizer
from ssmpi.state.checkpoint import parent
from ssmpi.state.checkpoint.trainer_state import SELECTION, Checkpoint, LiveState, restore
from ssmpi.state.recovery import lost_servers
from ssmpi.state.recovery.ledger import Booking, Ledger
from ssmpi.state.recovery.start import Start
from ssmpi.state.recovery.warm_state import Saved, WarmState
from ssmpi.trainer.lanes import Lanes, make_lanes
from ssmpi.trainer.precompile import compile_kernels
from ssmpi.trainer.progress import Progress
from ssmpi.trainer.tables import open_tables, placing

if TYPE_CHECKING:
    from ssmpi.config import Config, HasTables
    from ssmpi.model.member_program import MemberProgram
    from ssmpi.runtime.mpi.rank_memory import RankMemory
    from ssmpi.runtime.mpi.world import World


def warn(config: Config, world: World, start: Start) -> None:
    """Warn, on one rank, about settings that make training slow or unstable."""
    if world.oversubscribed:
        log.warning(world.oversubscribed)
    if world.index:
        return
    threads = config.topology.replica_lanes
    continues = config.run.continue_from and not config.run.fresh_optimizer
    begins = not (continues or start.checkpoint or start.warm)  # with new optimizer state
    if begins and threads > 1 and optimizer_of(config.dense).full_first_step and not config.schedule.warmup_examples:
        log.warning(
            f"no warm-up: the first step of dense.optimizer = '{config.dense.optimizer}' moves every parameter by "
            f"dense.rate, and {threads} threads of a replica take it at once, which can kill hidden units for good: "
            f"set schedule.warmup_examples = {100 * config.topology.lanes * config.data.batch_size}, 100 steps of each "
            "thread"
        )
    for name in sync.unread(config.sync):
        log.warning(f"sync.{name} has no effect, because sync.pace = '{config.sync.pace}': leave it out")
    if config.model.precision == "bf16" and processor.without_bfloat16():
        log.warning(processor.SLOW_BFLOAT16)
    if slow := custom_network.kinds_of(config.network.operators):
        log.warning(f"no kernels for {slow}: torch's autograd computes the whole network, which is slower")


def tables(config: Config, world: World, data: HasTables, start: Start) -> Tables:
    """The embedding tables: new, from surviving memory, or with the rows of a saved model."""
    with during(placing(data.cardinalities, config.topology.embedding_ps, start)):
        return open_tables(config, world, data, start)


def fresh_replica(
    config: Config, reader: SplitReader, seed: int, memory: Memory, part: MemberProgram | None = None
) -> Replica:  # fmt: skip
    """A replica in ``memory``, of a ``part`` of the network or all of it, with initial values; ``reader`` reads its
    training data.
    """
    means = reader.means() if config.model.center_inputs else None
    return Replica(config.network, config.model.precision, seed, memory, means, part)


def dense_model(
    config: Config, world: World, reader: SplitReader, start: Start, tables: Tables
) -> tuple[Replica, DenseOptimizer, Lanes]:
    """The replica (new, from surviving memory, or with the weights of a saved model), its optimizer, and the lanes over
    it, with the kernels compiled that they and the ``tables`` need.
    """
    memory, shared = start.memory, config.run.shared_memory
    replica = fresh_replica(
        config, reader, config.run.seed, memory.part("replica", shared=shared), config.parts[world.group.rank]
    )
    if replica.measured.names:
        replica.measure_in(memory.array("estimates", replica.measured.values.shape, "float64"))
    if model := start.checkpoint or start.parent:
        replica.vector[:] = replica.load(model / "dense.h5")
    optimizer = dense_optimizer(config.dense, replica, memory.part("dense optimizer", shared=False))
    with first_use.said(log.info) as compiled, during("loading kernels", compiled):
        compile_kernels(config, replica, reader.blank(2), messages=not tables.all_mapped, trainer=world.index)
    return replica, optimizer, make_lanes(config, world, replica)


def saved_state(config: Config, world: World, start: Start) -> Saved | None:
    """The state that a trainer resumes from; None at the beginning of a run."""
    if start.warm:
        return WarmState.gather(config, world, start.memory, start.repair)
    return Checkpoint.at(start.checkpoint) if start.checkpoint else None


def progress(config: Config, rows: int, saved: Saved | None, memory: RankMemory, trainer: int) -> Progress:
    """A trainer's counters, for a run over ``rows`` rows."""
    topology, before = config.topology, saved.state["examples"] if saved else 0
    made = Progress(
        topology.threads, topology.home_trainers, config.schedule, before, rows * config.data.passes, memory
    )
    made.cut = config.schedule.cut(saved.state.get(SELECTION, {}).get("plateaus", 0) if saved else 0)
    if isinstance(saved, Checkpoint) and trainer == 0:
        made.add_earlier(*saved.scored())
    if config.run.record_losses:
        made.losses = []
    return made


def synchronization(
    config: Config, world: World, replica: Replica, local: sync.LocalTrainer
) -> tuple[list[sync.Synchronizer], sync.Pace]:
    """The synchronizers of a trainer, and their pace."""
    options, threads = config.sync, config.topology.replica_lanes
    context = sync.RoundContext(world.replicas, world.center, config.waiting, local)
    synchronizers = sync.make(options, replica.vector, context, threads)
    return synchronizers, sync.pace_of(synchronizers, options, threads, partial(start, world), world.shadow_share)


def feed(
    config: Config, trainer: int, reader: SplitReader, saved: Saved | None, progress: Progress, memory: RankMemory
) -> Feed:
    """What a trainer trains on, from the start or its saved position. Shards that an earlier job has checked count as
    checked; the first trainer counts the rows of earlier jobs, too.
    """
    options = FeedOptions(
        config.data, config.topology, config.run.seed, config.evaluate.per_pass, config.embedding.prefetch,
        in_time=config.evaluate.progressive,
    )  # fmt: skip
    deal = saved.deal(config.topology, config.data.batch_size) if saved else Deal(0, 0, Position(0))
    made = Feed(options, trainer, reader, set(saved.state.get("checked", ())) if saved else set(), deal, memory)
    made.advanced = isinstance(saved, WarmState)  # beyond every checkpoint
    if not memory.kept:
        made.trained.rows[:] = progress.scored
        if saved and trainer == 0:
            made.trained.batches[0] = saved.state["logbook"]["iterations"]
    return made


def resume(
    config: Config, world: World, saved: Saved | None, live: LiveState, synchronizer: sync.Synchronizer, start: Start
) -> None:
    """Restore a trainer's live state from a checkpoint, make replicated state equal that has survived, or take the
    optimizer state of the run that is continued.
    """
    if isinstance(saved, Checkpoint):
        restore(live, saved, world, config.sync.identity, config.waiting)
    elif saved:
        saved.make_equal(synchronizer, world, config.waiting, live.owned)
    elif start.parent and not config.run.fresh_optimizer:
        parent.restore(live, start.parent, config.sync.identity)


def booking(config: Config, rows: int, saved: Saved | None, start: Start) -> Booking:
    """What this start books as lost."""
    ledger, losses = start.ledger or Ledger(), dict[str, Any]()
    if start.repair:
        assert saved
        ledger, losses = lost_servers.losses(config, start, saved.state)
    return Booking(ledger, losses, ledger.pls(rows * config.data.passes))
