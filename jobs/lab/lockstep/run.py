"""One training run in lockstep: all trainers and their worker threads in one thread of one process, without MPI.

In a tick every worker thread does one iteration; trainers follow each other. Rows, model, optimizers, learning rates
and merges are those of real runs, so one trainer with one thread is bit-identical to ``ssmpi train``. Only the timing
of several trainers and threads differs from a real run: ``Lockstep`` prescribes it, not the operating system's
scheduler.

**Threads.** The T threads of a trainer take turns, and a gradient is applied T - 1 gradients after it was computed, so
each of the other threads steps once in between: that is how Hogwild threads of equal speed interleave if they do
nothing but compute. A round finds T - 1 gradients in flight; a part of the run ends with none. Rows are pushed with the
gradient, not with the dense step, so their staleness depends on the number of worker threads in the job, not on how
they are divided among trainers.

The model leaves out that threads differ in speed, that weights change during a forward and a backward pass, and
updates lost to races. A foreground round of a whole trainer waits for its threads in a real run, not here. Real rows
are staler, because all threads of all trainers compute at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from jobs.lab.lockstep.rounds import LockstepRounds, Pushing
from ssmpi.data.batch import Batch
from ssmpi.data.feed import Feed, FeedOptions
from ssmpi.data.position import Position
from ssmpi.data.reader import SplitReader, batches
from ssmpi.data.trained_rows import Deal
from ssmpi.embedding.client import Lookups
from ssmpi.embedding.lookup import Lookup
from ssmpi.embedding.placement import place
from ssmpi.embedding.precision import NEAREST
from ssmpi.embedding.shards import local_tables
from ssmpi.embedding.table import Arena
from ssmpi.model.replica import ThreadModel, dense_optimizer
from ssmpi.runtime.errors import TrainingError
from ssmpi.runtime.mpi.rank_memory import ProcessMemory
from ssmpi.runtime.mpi.shared_memory import PrivateMemory
from ssmpi.runtime.protocols import DenseStep
from ssmpi.runtime.quality import Quality
from ssmpi.runtime.settings import EXAMPLES, positive, require, within
from ssmpi.trainer.build_trainer import fresh_replica
from ssmpi.trainer.progress import Progress

if TYPE_CHECKING:
    from ssmpi.config import Config

T = TypeVar("T")

SEEDS = ("dense", "embedding", "order", "interleaving")
LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class Lockstep:
    """Prescribes everything that is random or timing-dependent in a real run. ``gap`` is the number of ticks between
    two rounds, ``staleness`` the number between snapshot and merge. ``dense`` and ``embedding`` are the seeds of
    initial values, ``order`` is the seed of the row order; ``interleaving`` is the seed of the order of trainers within
    ticks, 0 for a fixed order. The run ends after ``steps`` ticks, or with 0 at the end of the data. Without
    ``feedback`` entries that a codec does not send are discarded. With ``nearest`` rows of 16 bits are rounded to the
    nearest value, as a control.
    """

    gap: float = 1.0
    staleness: int = 0
    dense: int = 1
    embedding: int = 1
    order: int = 1
    interleaving: int = 0
    steps: int = field(default=0, kw_only=True)
    feedback: bool = field(default=True, kw_only=True)
    nearest: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        within("steps", self.steps, 0, EXAMPLES)
        positive("gap", self.gap, EXAMPLES)
        within("staleness", self.staleness, 0, EXAMPLES)
        for name in SEEDS:
            within(f"seed of {name}", getattr(self, name), 0, LARGEST_SEED)


class ToNearest(Lookups):
    """Lookups whose pushes round rows of 16 bits to the nearest value."""

    def push(self, lookup: Lookup, gradients: np.ndarray, factor: float = 1.0) -> None:
        """As the base class."""
        lookup.number = NEAREST
        super().push(lookup, gradients, factor)


class LockstepTrainer:
    """One replica, its optimizer and its worker threads."""

    def __init__(self, config: Config, reader: SplitReader, seed: int) -> None:
        self.replica = fresh_replica(config, reader, seed, PrivateMemory())
        self.optimizer = dense_optimizer(config.dense, self.replica)
        self.steps: list[DenseStep] = []
        self._models = [self.replica.thread_model() for _ in range(config.topology.threads)]
        self._workers: list[tuple[int, ThreadModel, Lookups, Iterator[tuple[Batch, Lookup]]]] = []
        self._late: deque[tuple[int, ThreadModel, float]] = deque()  # gradients in flight: thread, model, rate factor
        self._first = 0

    def begin(self, first: int, lookups: list[Lookups], streams: list[Iterator[Batch]]) -> None:
        """Start a part of the run. Threads are numbered over the job; this trainer's begin at ``first``."""
        self._first = first
        self._workers = [
            (first + k, model, lookup, lookup.prefetched(stream))
            for k, (model, lookup, stream) in enumerate(zip(self._models, lookups, streams, strict=True))
        ]

    def tick(self, progress: Progress) -> bool:
        """One iteration of every thread; False if none had any more rows."""
        trained = False
        for worker in list(self._workers):
            number, model, lookups, rows_of = worker
            if found := next(rows_of, None):
                batch, rows = found
                given = batch.dense, rows.values, batch.labels, batch.first_example
                logits, by_rows = model.forward_backward(*given)
                rate_factor = progress.rate_factor()
                progress.record(number, logits, batch.labels)
                lookups.push(rows, by_rows, rate_factor)
                self._late.append((number - self._first, model, rate_factor))
                trained = True
            else:
                self._workers.remove(worker)
            self._step_until(len(self._workers) - 1)
        return trained

    def end(self) -> None:
        """End a part of the run, or all of it: apply the gradients in flight."""
        self._step_until(0)

    def _step_until(self, most: int) -> None:
        """Apply the oldest gradients until at most so many are in flight."""
        while len(self._late) > max(most, 0):
            thread, model, rate_factor = self._late.popleft()
            self.steps[thread].step(model, rate_factor)


class OneProcess:
    """Stands in for the other trainers of a ``Feed``: there are none."""

    def gather(self, value: T) -> list[T]:
        """The value of every trainer."""
        return [value]


class LockstepRun:
    """A whole run. Call ``train`` once; it calls ``watch`` after every tick, with the tick's number."""

    def __init__(self, config: Config, lockstep: Lockstep) -> None:
        torch.set_num_threads(1)
        self.config, self._lockstep, topology = config, lockstep, config.topology
        require(
            topology.group == 1,
            f"topology.group = {topology.group}: in lockstep a group is one trainer with the threads of all its homes: "
            f"set topology.group = 1, trainers = {topology.replicas} and threads = {topology.replica_lanes}",
        )
        self._reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
        self._placement = place(self._reader.manifest.cardinalities, 1)
        self.tables = local_tables(Arena(config.rows, self._placement, 0, lockstep.embedding))
        self.trainers = [LockstepTrainer(config, self._reader, lockstep.dense) for _ in range(topology.trainers)]
        pushing = Pushing(config.dense, self.trainers[0].replica.owned.borders, topology.threads, lockstep.feedback)
        vectors = [trainer.replica.vector for trainer in self.trainers]
        self.rounds = LockstepRounds(config.sync, vectors, lockstep.gap, lockstep.staleness, pushing)
        for k, trainer in enumerate(self.trainers):
            trainer.steps = [self.rounds.optimizer(k, thread, trainer.optimizer) for thread in range(topology.threads)]
        everyone = replace(topology, trainers=1, threads=topology.lanes)
        self.progress = Progress(everyone.threads, 1, config.schedule, expected=self._reader.rows * config.data.passes)
        self.progress.losses = []
        options = FeedOptions(
            config.data, everyone, lockstep.order, config.evaluate.per_pass, config.embedding.prefetch
        )
        checked = set(range(len(self._reader.shards)))
        self._feed = Feed(options, 0, self._reader, checked, Deal(0, 0, Position(0)), ProcessMemory())

    def train(self, watch: Callable[[int], None] = lambda tick: None) -> None:
        """Train all parts of the run, until the last one or the steps end."""
        threads, tick, most = self.config.topology.threads, 0, self._lockstep.steps
        turns = np.random.default_rng(self._lockstep.interleaving) if self._lockstep.interleaving else None
        for _ in self._feed.parts():
            self._begin_part(threads)
            training = list(range(len(self.trainers)))
            while training and not (most and tick == most):
                if turns:
                    turns.shuffle(training)
                training = [k for k in training if self.trainers[k].tick(self.progress)]
                if training:
                    tick += 1
                    self.rounds.after_tick(tick, training)
                    watch(tick)
            for trainer in self.trainers:
                trainer.end()
            self.rounds.close()
            if training:
                return
            self._feed.close()
            self._feed.gather_remaining(OneProcess())  # type: ignore[arg-type]  # of a Conversation only this

    def _begin_part(self, threads: int) -> None:
        dispatcher = self._feed.dispatcher
        assert dispatcher
        for index, trainer in enumerate(self.trainers):
            numbers = range(index * threads, (index + 1) * threads)
            streams = [self._feed.batches(k, dispatcher.next_block, lambda: False) for k in numbers]
            trainer.begin(numbers[0], [self.lookups(k) for k in numbers], streams)

    def lookups(self, thread: int) -> Lookups:
        """Pull and push for one thread."""
        return (ToNearest if self._lockstep.nearest else Lookups)(self.tables, thread)

    def score(self, split: str, vector: np.ndarray | None = None) -> dict[str, float]:
        """Metrics on one split, of the common model or of dense weights ``vector``; TrainingError if a score is not
        finite.
        """
        first = self.trainers[0].replica
        first.estimates.take_mean([trainer.replica.measured.values for trainer in self.trainers])
        model = first.scoring_model(self.rounds.model() if vector is None else vector)
        size, quality, lookups = self.config.evaluate.batch_size, Quality(), self.lookups(0)
        reader = SplitReader(self._reader.folder, split, 16 * size)
        rows_of = (batch for block in reader.blocks for batch in batches(reader.read(block), size))
        for batch, rows in lookups.prefetched(rows_of):
            assert batch.labels is not None
            if not np.isfinite(quality.add(model.score(batch.dense, rows.values), batch.labels)):
                raise TrainingError(f"training has diverged, {split} rows have no scores: lower the learning rates")
        return {"rows": quality.sums[0], **quality.compute()}
