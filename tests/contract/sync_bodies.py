"""A trainer's threads as far as synchronization sees them, and the settings of tests that use them."""

import threading
from dataclasses import dataclass

import numpy as np

from ssmpi import sync
from ssmpi.model.options import DenseOptions
from ssmpi.runtime.mpi import failure
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.mpi.service import Service
from ssmpi.runtime.mpi.waiting import WaitOptions, wait
from ssmpi.runtime.topology import Role
from ssmpi.sync.options import RoundOptions
from ssmpi.trainer.sync_ps import optimizer

WAITING = WaitOptions(time_limit_seconds=60)
PARAMETERS = 1_003  # not a multiple of anything
REFUSED = {
    (name, pace) for name, kind in sync.ALGORITHMS.items() for pace in sync.pace.PACES
    if kind.option_error(RoundOptions(name, pace, every_iterations=int(pace == "fixed_rate")))
}  # fmt: skip


def replica(seed):
    """Some weights; the same for the same seed."""
    return np.random.default_rng(seed).normal(size=PARAMETERS).astype(np.float32)


def live(world, options, seed):
    """A replica that others of its host may move, where ``options`` let them."""
    return mapped(world, options, replica(seed))


def mapped(world, options, initial):
    """The same with these initial weights."""
    memory = ProcessMemory().part("replica", shared=options.shared_memory)
    weights = memory.allocate(initial.nbytes).view(np.float32)
    weights[:] = initial
    world.replica = sync.ReplicaMemory(HOSTS.get(world.rank, world.host), memory)
    return weights


HOSTS = {}  # pretended names, by rank
DENSE = DenseOptions(optimizer="sgd", rate=1.0)


@dataclass
class ThreadModel:
    """As much of a model as a step needs; ``examples`` of its batch, and no rows."""

    weights: np.ndarray
    gradients: np.ndarray
    examples: int = 1
    starts = np.zeros(2, np.int64)
    all_mapped, number = False, 0
    rows = np.empty(0, np.int32)

    @property
    def arrays(self):
        return self.weights, self.gradients

    @property
    def values(self):
        return np.empty(self.examples)

    def summed(self, gradients):
        """Each row was looked up once."""
        return gradients

    def step(self, model, factor):
        """Descent at the rate 1, as ``DENSE``."""
        self.weights -= np.float32(factor) * model.gradients

    def state(self):
        """As much as tells that there is one."""
        return {"sums": np.zeros(1, np.float32)}


def on_trainers(world, options, weights, work, home=None, dense=DENSE):
    """``work(synchronizers)`` on a trainer, while sync PSs serve; the trainer's result."""
    kind = sync.algorithm_of(options)
    if world.role is Role.SYNC_PS and kind.partner == sync.SYNC_PS:
        service = Service(world.center)
        handler = sync.center_handler(
            options, optimizer(dense), service, world.topology, world.center.directory, ProcessMemory()
        )
        service.serve(world.topology.trainers, handler)
    if world.role is not Role.TRAINER:
        return None
    helped = np.zeros(world.topology.helpers(world.index), np.int64)
    home = home or sync.LocalTrainer(np.zeros(world.topology.threads, np.int64), helped=helped)
    home.optimizer, home.thread_model = (
        ThreadModel(weights, np.zeros_like(weights)),
        lambda: ThreadModel(weights, np.zeros_like(weights)),
    )
    home.replica = vars(world).pop("replica", home.replica)
    context = sync.RoundContext(world.replicas, world.center, WAITING, home)
    synchronizers = sync.make(options, weights, context, world.topology.replica_lanes)
    for synchronizer in synchronizers:
        for name in ("move", "update_in_place"):
            if hasattr(synchronizer.exchange, name):
                setattr(synchronizer.exchange, name, in_turns(turns(world), getattr(synchronizer.exchange, name)))
    result = work(synchronizers)
    synchronizers[0].exchange.goodbye()
    return result


def close_together(world, synchronizer):
    """End a part in which nobody follows others, as rounds of a leader that ends before its team would let it."""
    synchronizer.exchange.end()
    meet(world)
    synchronizer.close()


def turns(world):
    """A lock that pretended ranks share; real ones have their own."""
    return getattr(world._job, "lock", None) or threading.RLock()


def in_turns(lock, method):
    """``method``, which waits for its turn."""

    def alone(*arguments):
        with lock:
            return method(*arguments)

    return alone


def meet(world):
    """All trainers come here before any goes on."""
    wait(world.trainers.ibarrier(), WAITING, "the others")


def blocks(world, options):
    """Five blocks of steps with a round after each, and one at the end: replicas before that, and the model."""
    weights = live(world, options, 0)

    def work(synchronizers):
        synchronizers[0].exchange.begin()
        for block in range(5):
            weights[:] += 0.1 * replica(10 * block + world.rank)
            meet(world)
            synchronizers[0].round()
            meet(world)
        after = weights.copy()
        close_together(world, synchronizers[0])
        return after, synchronizers[0].model()

    return on_trainers(world, options, weights, work)


def with_pace(world, options, synchronizers, gradients, steps, examples=1):
    """Worker threads that take so many steps each by ``gradients(thread)``, under the pace; as ``hogwild`` does it.

    ``examples`` is the size of this trainer's batches.
    """

    def start(name, body, *arguments):
        return failure.start(world, name, body, *arguments)

    def work(thread):
        own, push_rows = synchronizers[thread % len(synchronizers)], synchronizers[0].push_rows
        optimizer = own.optimizer(thread)
        for _ in range(steps[thread]):
            model, factor = ThreadModel(own.weights, gradients(thread), examples), own.context.local.factor()
            if push_rows:
                push_rows(model, np.empty((0, 1), np.float32), factor, thread)
            optimizer.step(model, factor)
            own.context.local.iterations[thread] += 1
            pace.after_step(thread)
        pace.thread_done(thread)

    pace = sync.pace_of(synchronizers, options, len(steps), start, world.shadow_share)
    pace.begin()
    workers = [start(f"worker {k}", work, k) for k in range(len(steps))]
    for worker in workers:
        worker.join()
    pace.end()


def threads_of(options, *steps):
    """Steps of two threads; those of both for one where the algorithm cannot have two."""
    return [sum(steps)] if sync.algorithm_of(options).in_the_step else list(steps)


def options(algorithm, pace="shadow", every=2, **settings):
    """Settings; the fixed rate is a round every second iteration, where that is possible."""
    own = sync.algorithm_of(RoundOptions(algorithm))
    every = (1 if own.in_the_step else every) if pace == "fixed_rate" else 0
    return sync.Options(algorithm=algorithm, pace=pace, every_iterations=every, cpu_share=1.0, **settings)
