"""A trainer rank: one dense replica, its Hogwild threads, its shadow, and the passes over the data they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ssmpi import sync
from ssmpi.checkpoint.manager import Keeper
from ssmpi.checkpoint.trainer_state import Checkpoint, restore
from ssmpi.comm import failure
from ssmpi.comm.shared_memory import memory_for
from ssmpi.comm.waiting import SUPERVISOR, Pause, wait
from ssmpi.comm.world import World
from ssmpi.core import atomic_file, cpu_usage
from ssmpi.core.log import during, log
from ssmpi.core.protocols import DenseStep
from ssmpi.data.batch import Batch
from ssmpi.data.cursor import Course
from ssmpi.data.position import Position
from ssmpi.data.reader import SplitReader
from ssmpi.data.schema import DENSE_FEATURES, SPARSE_FEATURES
from ssmpi.embedding.client import Held, Lookups
from ssmpi.model import processor
from ssmpi.model.optim import dense_optimizer
from ssmpi.model.replica import Replica
from ssmpi.model.zoo import MODELS
from ssmpi.report.results import Results
from ssmpi.roles import control
from ssmpi.roles.evaluate import Evaluator, Scored
from ssmpi.roles.model_selection import Choice
from ssmpi.roles.precompile import warm_up
from ssmpi.roles.progress import Clock, Progress
from ssmpi.roles.shard_check import check, share
from ssmpi.roles.tables import Tables, placing

if TYPE_CHECKING:
    from ssmpi.config import Config


class Trainer:
    """What the story page works with; see ``ssmpi/train.py``."""

    def __init__(self, config: Config, world: World, folder: Path, start_from: Path | None = None) -> None:
        torch.set_num_threads(1)  # threads inside an operator fight with the worker threads; see DESIGN
        self.config, self.world, self.folder = config, world, folder
        world.beat(config.waiting)
        if world.crowded:
            log.warning(world.crowded)
        if config.model.precision == "bf16" and world.index == 0 and processor.without_bfloat16():
            log.warning(processor.SLOW_BFLOAT16)
        threads = config.topology.threads
        saved = Checkpoint.at(start_from) if start_from else None
        self.reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
        with during(placing(self.reader.manifest.cardinalities, config.topology.embedding_ps, start_from)):
            self.tables = Tables(config, world, self.reader.manifest.cardinalities, start_from)
        make = MODELS[config.model.name]
        self.replica = Replica(
            lambda: make(config.model, DENSE_FEATURES, SPARSE_FEATURES),
            config.run.seed,
            memory_for(config.sync.transport),
        )
        if start_from:
            self.replica.vector[:] = self.replica.load(start_from / "dense.h5")
        self.optimizer = dense_optimizer(config.dense, self.replica)
        with during("loading kernels, compiling those that are new here"):
            warm_up(config, self.replica, self.optimizer)
        self.progress = Progress(
            threads, config.topology.trainers, config.schedule,
            saved.state["examples"] if saved else 0, self.reader.rows * config.data.passes,
        )  # fmt: skip
        self.control = control.Control(world.control, threads, config.waiting, self.progress)
        local = sync.LocalTrainer(
            self.progress.iterations, self.progress.factor, self.optimizer, self.replica.twin,
            sync.RowAccess(self.tables.transport, self.tables.placement.servers, config.embedding.dim),
            sync.ReplicaMemory(world.host, self.replica.memory),
        )  # fmt: skip
        peers = sync.Peers(world.trainers, world.center, config.waiting, local)
        options = config.sync
        if saved and saved.state["examples"]:
            options = replace(options, warmup_steps=0)  # over since the first rest, at the latest
        self.synchronizers = sync.make(options, self.replica.vector, peers, threads)
        self.synchronizer = self.synchronizers[0]
        self.pace = sync.pace_of(self.synchronizers, options, threads, self.start, world.shadow_share)
        self.evaluator = Evaluator(
            Path(config.data.folder), config.evaluate, threads, world.trainers,
            self.tables.lookups, self.replica.twin, self.start, lambda: self.stopping,
        )  # fmt: skip
        self.stopped = self._due = self._started = False
        self._came_to_rest = 0.0
        position = saved.position(config.topology, config.data.batch_size) if saved else Position(0)
        self.control.checked.update(saved.state.get("checked", ()) if saved else ())
        self.course = Course(config, world.index, self.reader, position, self.control.checked)
        self.held = [Held(stream.was_cut) for stream in self.course.streams]
        if config.run.record_losses:
            self.progress.losses = []
        if saved:
            restore(self, saved)
        self.results: Results | None = None
        self.keeper = Keeper(self)
        self.choice = Choice(self, saved.state.get("choice") if saved else None)
        if world.index == 0:
            self.results = Results(config, folder, self.reader.rows, saved.earlier() if saved else None)
            self.control.gathered, self.control.due = self.results.logbook.gathered, self.keeper.due

    @property
    def stopping(self) -> bool:
        """Whether somebody asked for an early end; ``stopped`` is what all trainers have agreed on."""
        return self.control.stopping

    def parts(self) -> Iterator[int]:
        """The run in parts: each pass is cut into ``evaluate.per_pass`` parts. A part comes again until all of it has been
        trained on, because a checkpoint may interrupt it. Ends early when stopping, and when ``[evaluate]`` says so.
        """
        if self.choice.ended_by:
            return
        for part in self.course.parts():
            yield part
            if self.stopped or self.choice.ended_by:
                return

    def stream(self, thread: int) -> Iterator[Batch]:
        """The batches of the pieces dealt to one worker thread, until there are none or training pauses."""
        control = self.control
        return self.course.batches(thread, lambda: control.next_block(thread), lambda: control.pausing)

    def lookups(self, thread: int) -> Lookups:
        """A worker thread's way to the embedding rows."""
        return self.tables.lookups(thread, self.held[thread], self.synchronizer.transport())

    def optimizer_of(self, thread: int) -> DenseStep:
        """What a worker thread steps with: the trainer's dense optimizer, unless synchronization has a say in the step."""
        return self.pace.optimizer(self.synchronizers[thread % len(self.synchronizers)].optimizer(thread))

    def train_part(self, hogwild: Callable[[int, Trainer], None]) -> None:
        """Run the worker threads while the main thread supervises, until this part is done or training pauses; returns when
        all trainers have come to that.
        """
        if not self._started:
            unchecked = share(self.course.shards(), self.control.checked, self.world.index, self.world.trainers.size)
            self.start("check", check, self.reader, unchecked, self.control.tell_checked)
            with during("waiting for the other ranks"):
                self._rest()  # all begin together: a trainer that is ready first would take the others' blocks
            cpu_usage.set_up()
            if self.results:
                self.results.logbook.start_clock()
            self._started = True
        assert self.course.handout
        self.control.begin(self.course.handout)
        self.pace.begin()
        workers = [self.start(f"worker {k}", hogwild, k, self) for k in range(self.config.topology.threads)]
        self._supervise(lambda: not any(w.is_alive() for w in workers), finished=False)
        clock, closing = Clock(), self.start("closing", self.pace.end)
        self._supervise(lambda: not closing.is_alive(), finished=True)
        told = np.array([self.stopping, self.keeper.due()], np.float32)
        wait(self.world.trainers.iallreduce(told), self.config.waiting, "the other trainers (to end this part)")
        self.stopped, self._due = map(bool, told)
        self.course.take_stock(self.world.trainers)
        self._came_to_rest = clock.wall

    def start(self, name: str, body: Callable[..., Any], *arguments: Any) -> Any:
        """A guarded thread of this rank."""
        return failure.start(self.world, name, body, *arguments)

    def evaluate(self, split: str) -> None:
        """Score the common model on one split, where a part is done, if the data set has it, and let that decide what
        ``[evaluate]`` says; every trainer takes part.
        """
        if not self.stopped and not self.course.position.left and (scored := self._score_model(split)):
            self.choice.weigh(scored)

    def evaluate_finally(self, split: str) -> None:
        """Score the last model, and on request the first trainer's own replica as a second figure. A run that is asked to stop
        meanwhile leaves a checkpoint too, to do this again.
        """
        if self.stopped:
            return
        if not self.choice.scored_finally and (scored := self._score_model(split)):
            self.note(split, scored, best=self.choice.best_on(split))
        if self.config.evaluate.replica and not self.stopped and self.has(split):
            vector = self.replica.vector.copy()
            wait(self.world.trainers.ibcast(vector), self.config.waiting, "the other trainers")
            if scored := self.score(split, vector):
                self.note(split, scored, "replica 0")
        if self.stopped:
            self.save()

    def has(self, split: str) -> bool:
        """Whether a split can be scored."""
        return self.reader.manifest.has_rows(split) and self.reader.manifest.labelled

    def score(self, split: str, vector: np.ndarray) -> Scored | None:
        """Score weights on a split, at rest. None if it was cut short, on all trainers alike, which ends the run early."""
        clock = Clock()
        metrics = self.evaluator.run(split, vector, self.config.waiting)
        if metrics is None:
            self.stopped = True
            return None
        return Scored(vector, metrics, clock.wall)

    def note(self, split: str, scored: Scored, what: str = "model", best: bool | None = None) -> None:
        """Keep an evaluation; see ``Results.evaluated``."""
        if self.results:
            self.results.evaluated(split, scored, what, best)

    def _score_model(self, split: str) -> Scored | None:
        """The common model on one split, if the data set has it."""
        if not self.has(split):
            return None
        self._rest()
        if self.results:
            self.results.logbook.window()
        return self.score(split, self.synchronizer.model())

    def keep(self) -> None:
        """Save a checkpoint, if one is due."""
        if self._due and not self.stopped:
            self._rest()
            self.keeper.save(self.course.coming, 0.0 if self.course.position.done else self._came_to_rest)
            self._due = False

    def save(self) -> None:
        """Write the model into the run folder: the dense weights that are evaluated, and every PS's tables. A run that was
        asked to stop leaves a checkpoint to go on from instead.
        """
        self._rest()
        if self.stopped:
            self.keeper.save_and_stop(self.course.position)
            return
        vector = self.synchronizer.model()
        if self.results and not self.choice.put_in_place():
            self.keeper.save_model(vector)
        self.keeper.wait_for_the_first()

    def goodbye(self) -> None:
        """Take leave of all servers and write the results."""
        if self.progress.losses is not None:
            path = self.folder / f"losses-{self.world.index}.npy"
            with atomic_file.whole(path) as beside, beside.open("wb") as out:
                np.save(out, np.array(self.progress.losses))
        if self.results:
            self.results.finish(stopped=self.stopped, ended_by=self.choice.ended_by, kept=self.choice.model)
            if not self.stopped:
                self.choice.close()
        self.tables.transport.goodbye()
        self.synchronizer.goodbye()

    def _rest(self) -> None:
        """Come together when every push of every trainer has been applied."""
        self.tables.transport.drain()
        wait(self.world.trainers.ibarrier(), self.config.waiting, "the other trainers (to come to rest)")

    def report(self, finished: bool) -> np.ndarray:
        """What the first trainer wants to know, since the last report."""
        header = {
            "stop": float(self.stopping),
            "finished": float(finished),
            "examples": float(self.progress.examples),
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
