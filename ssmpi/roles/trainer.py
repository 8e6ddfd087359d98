"""A trainer rank: one dense replica, its Hogwild threads, its shadow, and the passes over the data they make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ssmpi import sync
from ssmpi.comm import failure
from ssmpi.comm.waiting import SUPERVISOR, Pause, wait
from ssmpi.comm.world import World
from ssmpi.data.batch import Batch
from ssmpi.data.handout import NOTHING_LEFT, Handout, block_order
from ssmpi.data.reader import SplitReader, batches_in, shuffled, suit_block_rows
from ssmpi.data.schema import DENSE_FEATURES, SPARSE_FEATURES
from ssmpi.embedding.client import Lookups
from ssmpi.log import log
from ssmpi.model.optim import DenseOptimizer, dense_optimizer
from ssmpi.model.replica import Replica
from ssmpi.model.zoo import MODELS
from ssmpi.roles import control, weights
from ssmpi.roles.evaluate import Evaluator
from ssmpi.roles.progress import Clock, Progress
from ssmpi.roles.results import Results
from ssmpi.roles.tables import Tables
from ssmpi.roles.warm import warm_up

if TYPE_CHECKING:
    from ssmpi.config import Config


class Trainer:
    """What the story page works with; see ``ssmpi/train.py``."""

    def __init__(self, config: Config, world: World, folder: Path, start_from: Path | None = None) -> None:
        torch.set_num_threads(1)  # threads inside an operator fight with the worker threads; see DESIGN
        self.config, self.world, self.folder = config, world, folder
        if world.crowded:
            log.warning(world.crowded)
        threads = config.topology.threads
        self.reader = self._open_data()
        self.tables = Tables(config, world, self.reader.manifest.cardinalities, start_from)
        make = MODELS[config.model.name]
        self.replica = Replica(lambda: make(config.model, DENSE_FEATURES, SPARSE_FEATURES), config.run.seed)
        if start_from:
            self.replica.vector[:] = self.replica.load(start_from / "dense.h5")
        self.optimizer = dense_optimizer(config.dense, self.replica)
        warm_up(config, self.replica, self.optimizer)
        self.progress = Progress(threads, config.topology.trainers, config.schedule)
        self.control = control.Control(world.control, threads, config.waiting)
        waiting = config.waiting
        if world.full and config.sync.pace == "shadow":  # nobody waits for a background round: ask less often
            waiting = replace(waiting, longest_sleep_us=max(waiting.longest_sleep_us, SUPERVISOR.longest_sleep_us))
        home = sync.Home(
            self.progress.iterations, self.progress.factor, self.optimizer,
            self.replica.twin, self.tables.transport, self.tables.placement.servers, config.embedding.dim,
        )  # fmt: skip
        peers = sync.Peers(world.trainers, world.center, waiting, home)
        self.synchronizers = sync.make(config.sync, self.replica.vector, peers, threads)
        self.synchronizer = self.synchronizers[0]
        self.pace = sync.pace_of(self.synchronizers, config.sync, threads, self.start, world.full)
        self.evaluator = Evaluator(
            Path(config.data.folder), config.evaluate, threads, world.trainers,
            self.tables.lookups, self.replica.twin, self.start, lambda: self.stopping,
        )  # fmt: skip
        self.results = Results(config, folder, self.reader.rows) if world.index == 0 else None
        if self.results:
            self.control.gathered = self.results.logbook.gathered
        self.parts_done, self.stopped = 0, False
        self.unfinished: dict[int, int] = {}
        self._pass = 0
        if config.run.record_losses:
            self.progress.losses = []

    @property
    def stopping(self) -> bool:
        """Whether somebody asked for an early end; ``stopped`` is what all trainers have agreed on."""
        return self.control.stopping

    def parts(self) -> Iterator[int]:
        """The run in parts: each pass is cut into ``evaluate.per_pass`` parts. Ends early when stopping."""
        per_pass = self.config.evaluate.per_pass
        for part in range(self.config.data.passes * per_pass):
            if self.stopped:
                return
            self._pass, place_in_pass = divmod(part, per_pass)
            order = block_order(self.config.data, self.config.run.seed, self._pass, len(self.reader.blocks))
            edges = [len(order) * p // per_pass for p in (place_in_pass, place_in_pass + 1)]
            askers = self.config.topology.threads * self.config.topology.trainers
            self.control.begin(Handout(self.config.data, order[edges[0] : edges[1]], askers))
            yield part
            self.parts_done += 1

    def stream(self, thread: int) -> Iterator[Batch]:
        """The batches of the blocks dealt to one worker thread. Every batch given out gets trained on."""
        seed, data = self.config.run.seed, self.config.data
        room = self.reader.room()
        while (number := self.control.next_block(thread)) != NOTHING_LEFT:
            block = self.reader.blocks[number]
            order = shuffled(seed, 2, self._pass, number, size=block.rows) if data.shuffle else np.arange(block.rows)
            done = 0
            for batch in batches_in(order, self.reader.read(block, room), data.batch_size):
                if self.stopping:
                    self.unfinished[number] = done
                    return
                yield batch
                done += len(batch)

    def lookups(self, thread: int) -> Lookups:
        """A worker thread's way to the embedding rows."""
        return self.tables.lookups(thread, self.synchronizer.transport())

    def optimizer_of(self, thread: int) -> DenseOptimizer:
        """What a worker thread steps with: the trainer's dense optimizer, unless synchronization has a say in the step."""
        own: DenseOptimizer = self.pace.optimizer(
            self.synchronizers[thread % len(self.synchronizers)].optimizer(thread)
        )
        return own

    def train_part(self, hogwild: Callable[[int, Trainer], None]) -> None:
        """Run the worker threads on one part of the run while the main thread supervises; returns when all trainers are done."""
        if not self.parts_done:
            self._rest()  # all begin together: a trainer that is ready first would take the others' blocks
            if self.results:
                self.results.logbook.start_clock()
        self.pace.begin()
        workers = [self.start(f"worker {k}", hogwild, k, self) for k in range(self.config.topology.threads)]
        self._supervise(lambda: not any(w.is_alive() for w in workers), finished=False)
        closing = self.start("closing", self.pace.end)
        self._supervise(lambda: not closing.is_alive(), finished=True)
        told = np.array([self.stopping], np.float32)
        wait(self.world.trainers.iallreduce(told), self.config.waiting, "the other trainers (to end this part)")
        self.stopped = bool(told[0])

    def start(self, name: str, body: Callable[..., Any], *arguments: Any) -> Any:
        """A guarded thread of this rank."""
        return failure.start(self.world, name, body, *arguments)

    def evaluate(self, split: str) -> None:
        """Score the common model on one split, if the data set has it; every trainer takes part."""
        if self.stopped or split not in self.reader.manifest.splits or not self.reader.manifest.labelled:
            return
        self._rest()
        clock = Clock()
        metrics = self.evaluator.run(split, self.synchronizer.model(), self.config.waiting)
        self._evaluated(split, metrics, clock)

    def evaluate_finally(self, split: str) -> None:
        """As ``evaluate``, and on request the first trainer's own replica as a second figure."""
        self.evaluate(split)
        if not self.config.evaluate.replica or self.stopped or split not in self.reader.manifest.splits:
            return
        vector = self.replica.vector.copy()
        wait(self.world.trainers.ibcast(vector), self.config.waiting, "the other trainers")
        clock = Clock()
        metrics = self.evaluator.run(split, vector, self.config.waiting)
        self._evaluated(split, metrics, clock, "replica 0")

    def save(self) -> None:
        """Write the model into the run folder: the dense weights that are evaluated, and every PS's tables."""
        self._rest()
        vector = self.synchronizer.model()
        if self.world.index == 0:
            weights.save(self.folder / "model", self.replica, vector, self.tables.transport)
            (self.folder / "model" / "state.json").write_text(json.dumps(self.state()) + "\n")
        if self.progress.losses is not None:
            np.save(self.folder / f"losses-{self.world.index}.npy", np.array(self.progress.losses))

    def goodbye(self) -> None:
        """Take leave of all servers and write the results."""
        if self.results:
            self.results.finish(stopped=self.stopped)
        self.tables.transport.goodbye()
        self.synchronizer.goodbye()

    def state(self) -> dict[str, Any]:
        """Where in the data the run stands: parts done, blocks dealt in the last one, rows done of blocks cut short."""
        dealt = self.control.handout.state() if self.control.handout else {}
        return {"parts_done": self.parts_done, **dealt, "cut_short": self.unfinished}

    def _evaluated(self, split: str, metrics: dict[str, float] | None, clock: Clock, what: str = "model") -> None:
        """Keep an evaluation; one that was cut short, on all trainers alike, ends the run early."""
        if metrics is None:
            self.stopped = True
        elif self.results:
            self.results.evaluated(split, metrics, clock.wall, what)

    def _rest(self) -> None:
        """Come together when every push of every trainer has been applied."""
        self.tables.transport.drain()
        wait(self.world.trainers.ibarrier(), self.config.waiting, "the other trainers (to come to rest)")

    def report(self, finished: bool) -> np.ndarray:
        """What the first trainer wants to know, since the last report."""
        header = {
            "stop": float(self.stopping),
            "finished": float(finished),
            "iterations": float(self.progress.iterations.sum()),
            **sync.figures(self.synchronizers),
        }
        return control.pack(header, *self.progress.since_last())

    def _supervise(self, done: Callable[[], bool], *, finished: bool) -> None:
        """Keep the control conversation going until ``done()`` and, at the end of a part, until nobody needs us."""
        pause = Pause(SUPERVISOR)
        while True:
            ended = done()
            free = self.control.tick(self.report, finished=finished and ended)
            if ended and (free or not finished):
                return
            pause.nap()

    def _open_data(self) -> SplitReader:
        data, topology = self.config.data, self.config.topology
        reader = SplitReader(Path(data.folder), data.train_split, data.block_rows)
        rows = suit_block_rows(data, reader.rows, topology.trainers * topology.threads)
        return SplitReader(Path(data.folder), data.train_split, rows)
