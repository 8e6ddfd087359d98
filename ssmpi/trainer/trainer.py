"""A trainer rank: one dense replica, its Hogwild worker threads, its shadow thread, and their passes over the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from ssmpi import sync
from ssmpi.data.batch import Batch
from ssmpi.data.position import Position
from ssmpi.data.reader import SplitReader
from ssmpi.embedding.client import Lookups, MakeLookups, PrefetchedRows
from ssmpi.embedding.read_ahead import read_ahead_of
from ssmpi.embedding.table import KEYS
from ssmpi.model.options import Schedule
from ssmpi.runtime.files.log import during
from ssmpi.runtime.host import cpu_usage
from ssmpi.runtime.host.clock import Clock
from ssmpi.runtime.mpi import failure
from ssmpi.runtime.mpi.signals import stop_requested
from ssmpi.runtime.mpi.waiting import SUPERVISOR, Backoff, wait
from ssmpi.runtime.mpi.world import World
from ssmpi.runtime.protocols import DenseStep
from ssmpi.runtime.stop import Stop
from ssmpi.state.checkpoint.manager import CheckpointManager, CheckpointTimer
from ssmpi.state.checkpoint.trainer_state import SELECTION, LiveState, Snapshot
from ssmpi.state.recovery import restart
from ssmpi.state.recovery.start import BEGINNING, Start
from ssmpi.state.recovery.warm_state import RecoveryNotes
from ssmpi.trainer import build_trainer
from ssmpi.trainer.control import Control, check, share
from ssmpi.trainer.evaluate import Evaluations, Evaluator
from ssmpi.trainer.metrics.results import RunResults
from ssmpi.trainer.metrics.trainer_report import TrainerReport
from ssmpi.trainer.model_selection import ModelSelection
from ssmpi.trainer.snapshot import CommonModel, Snapshots

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.model.lane import HelperModel
    from ssmpi.model.replica import ThreadModel
    from ssmpi.runtime.mpi.rank_memory import RankMemory


class Trainer:
    """The object that ``ssmpi/train.py`` works with."""

    _save_agreed, _started, _quiesce_seconds = False, False, 0.0

    def __init__(self, config: Config, world: World, start: Start = BEGINNING) -> None:
        self.config, self.world = config, world
        world.start_heartbeat(config.waiting)
        build_trainer.warn(config, world, start)
        saved, memory = build_trainer.saved_state(config, world, start), start.memory
        self._reader = SplitReader(Path(config.data.folder), config.data.train_split, config.data.block_rows)
        manifest, rows = self._reader.manifest, self._reader.rows
        self.tables = build_trainer.tables(config, world, manifest, start)
        dense = build_trainer.dense_model(config, world, self._reader, start, self.tables)
        self.replica, self.optimizer, self._lanes = dense
        self.progress = build_trainer.progress(config, rows, saved, memory, world.index)
        self._stop = Stop(stop_requested)
        self._feed = build_trainer.feed(config, world.index, self._reader, saved, self.progress, memory)
        self._control = Control(
            world.control, config.topology.threads, config.waiting, self.progress, self._stop, self._feed.checked
        )
        self._batches_before = int(self._feed.trained.batches.sum())
        local = self._local_trainer(memory)
        self.synchronizers, self.pace = build_trainer.synchronization(config, world, self.replica, local)
        self._in_flight = self._feed.trained.in_flight(self.progress.scored)
        self._prefetched = [PrefetchedRows(partial(self._feed.interrupted, k)) for k in range(config.topology.threads)]
        state, losses = self.optimizer.state(), self.progress.losses
        live = LiveState(self.replica.owned, state, self.synchronizers[0], self._prefetched, losses)
        self._model = CommonModel(self.synchronizers[0], self.replica, world, config.waiting)
        build_trainer.resume(config, world, saved, live, self.synchronizers[0], start)
        booking = build_trainer.booking(config, rows, saved, start)
        folder, expected = config.run.path, rows * config.data.passes
        self._results = None
        if world.index == 0:
            self._results = RunResults(folder, config.run, config.topology, expected, saved, booking)
            if config.schedule != Schedule():
                self._results.logbook.rate_factor = self.progress.rate_factor
        self._snapshots = Snapshots(
            config=config, reader=self._reader, placement=self.tables.placement, model=self._model, live=live,
            progress=self.progress, checked=self._feed.checked, results=self._results,
        )  # fmt: skip
        logbook = self._results.logbook if self._results else None
        timer = CheckpointTimer(config.checkpoint, self.progress.examples_of_all, memory)
        self._checkpoints = CheckpointManager(config, world, self.tables, self._stop, timer, logbook)
        scoring = self.replica.scoring_model
        evaluator = Evaluator(
            config.evaluate, self._reader.folder, world, partial(Lookups, self.tables), scoring, self._stop
        )
        self._evaluations = Evaluations(evaluator, manifest, config.waiting, self._results, self._model, self._quiesce)
        selected = saved.state.get(SELECTION) if saved else None
        self._selection = ModelSelection(
            config, self._evaluations, self._checkpoints, self._snapshots.of_model, selected
        )
        self._notes = RecoveryNotes(folder, memory, booking, logbook, self._run_so_far, saved)
        self._control.gathered, self._control.due = self._gathered, self._checkpoint_due

    def _local_trainer(self, memory: RankMemory) -> sync.LocalTrainer:
        """What algorithms use of this trainer."""
        config, world = self.config, self.world
        return sync.LocalTrainer(
            self._feed.trained.batches, self.progress.rate_factor, self.optimizer, self.replica.thread_model,
            sync.RowAccess(self.tables, self.tables.placement.servers, config.rows.layout.width),
            sync.ReplicaMemory(world.host, self.replica.memory, self.replica.owned.borders), memory,
            helped=np.zeros(config.topology.helpers(world.index), np.int64),
        )  # fmt: skip

    @property
    def stopped(self) -> bool:
        """Whether all trainers have agreed to end early."""
        return self._stop.stopped

    @property
    def batches(self) -> int:
        """Batches that this process has trained on."""
        return int(self._feed.trained.batches.sum()) - self._batches_before

    def parts(self) -> Iterator[int]:
        """The parts of the run: each pass has ``evaluate.per_pass`` parts. A part is repeated until it is complete,
        because a checkpoint may interrupt it. With ``evaluate.progressive`` its rows are scored first. Ends early if
        the run stops, or if ``[evaluate]`` ends it.
        """
        if self._selection.ended_by:
            return
        for part in self._feed.parts():
            if self._evaluations.score_ahead(part, self._feed):
                self._notes.write()
            if self.stopped:
                return
            self.progress.cut = self._selection.cut
            yield part
            if self.stopped or self._selection.ended_by:
                return

    def stream(self, thread: int) -> Iterator[Batch]:
        """The batches of the pieces assigned to one worker thread, until there are no more or training pauses."""
        return self._feed.batches(thread, self._control.next_block, self._stop.must_pause, read_ahead_of(self.tables))

    def model_of(self, thread: int) -> ThreadModel:
        """The network of a worker thread: over the live weights, with gradients of its own."""
        return self._lanes.model(thread)

    def helper_of(self, thread: int) -> HelperModel:
        """What a helper thread computes of another member's lane, over the weights that this trainer owns."""
        return self._lanes.helper(thread)

    def count_help(self, thread: int) -> None:
        """A helper thread has finished a step of another member's lane."""
        self.synchronizers[0].context.local.helped[thread - self._lanes.helpers.start] += 1

    def lookups(self, thread: int, kind: MakeLookups = Lookups) -> Lookups:
        """A worker thread's pull and push of embedding rows; a benchmark may give another ``kind``."""
        return kind(self.tables, thread, self._prefetched[thread], self.synchronizers[0].push_rows)

    def optimizer_of(self, thread: int) -> DenseStep:
        """The optimizer of a worker thread: the trainer's dense optimizer, unless the synchronizer provides its own."""
        own = self.synchronizers[thread % len(self.synchronizers)].optimizer(thread)
        return own if thread in self._lanes.helpers else self._lanes.optimizer(own)

    def train_part(self, hogwild: Callable[[int, Trainer], None], help_lane: Callable[[int, Trainer], None]) -> None:
        """Run the worker threads, and the helpers of other members' lanes, while the main thread supervises, until this
        part is done or training pauses; returns once this holds for all trainers.
        """
        if not self._started:
            unchecked = share(self._feed.shards(), self._feed.checked, self.world.index, self.world.trainers.size)
            self.start("check", check, self._reader, unchecked, self._control.tell_checked)
            with during("waiting for the other ranks"):
                self._quiesce()  # all begin together: otherwise the first one to be ready would take the others' blocks
            cpu_usage.set_up()
            lost = self.tables.sent, self.synchronizers[0].context.local.sent, self._in_flight
            restart.resumed(self._notes, self.progress.examples_of_all, lost, self.world.trainers)
            if self._results:
                self._results.logbook.start_clock(self.world.hosts)
            self._started = True
        assert self._feed.dispatcher
        self._control.begin(self._feed.dispatcher)
        self.world.traffic.on = True
        self.pace.begin()
        if self._results:
            self._results.logbook.part_begins()
        self._run_threads(hogwild, help_lane)
        self._feed.close()
        clock, closing = Clock(), self.start("closing", self.pace.end)
        self._serve_until(lambda: not closing.is_alive(), finished=True)
        if self._results:
            self._results.logbook.part_ends()
        self.world.traffic.on = False
        self._checkpoints.poll()
        wishes = np.array([self._stop.stopping, self._checkpoint_due()], np.float32)
        wait(self.world.trainers.iallreduce(wishes), self.config.waiting, "the other trainers (to end this part)")
        if wishes[0]:
            self._stop.agree()
        self._save_agreed = bool(wishes[1])
        self._feed.gather_remaining(self.world.trainers)
        self._sweep()
        self._quiesce_seconds = clock.wall

    def _run_threads(self, hogwild: Callable[[int, Trainer], None], help_lane: Callable[[int, Trainer], None]) -> None:
        """Run the worker threads, and the helpers of other members' lanes, until all have ended."""

        def work(thread: int) -> None:
            hogwild(thread, self)
            self._lanes.close(thread)  # when its batches end, its helpers end too

        self._lanes.begin(self.start)
        threads = [self.start(f"helper {k}", help_lane, k, self) for k in self._lanes.helpers]
        threads += [self.start(f"worker {k}", work, k) for k in self._lanes.workers]
        self._serve_until(lambda: not any(thread.is_alive() for thread in threads), finished=False)
        self._lanes.end()

    def _serve_until(self, done: Callable[[], bool], *, finished: bool) -> None:
        """The main thread, while others work: serve the control conversation and look after checkpoints that are being
        written, until ``done()`` and, at the end of a part, until no other trainer needs this one.
        """
        pause = Backoff(SUPERVISOR)
        while True:
            ended = done()
            self._checkpoints.poll()
            free = self._control.tick(self._report, finished=finished and ended)
            if ended and (free or not finished):
                return
            pause.nap()

    def start(self, name: str, body: Callable[..., object], *arguments: object) -> Thread:
        """Start a guarded thread of this rank."""
        return failure.start(self.world, name, body, *arguments)

    def evaluate(self, split: str) -> None:
        """At the end of a part, score the common model on one split, if the data set has it, and apply the rules of
        ``[evaluate]`` to the result. Every trainer takes part.
        """
        if self.stopped or self._feed.position.left:
            return
        if scored := self._evaluations.score_model(split):
            self._selection.consider(scored)
        if not self.stopped:
            self._notes.evaluated(self._feed.position.part)

    def evaluate_final(self, split: str) -> None:
        """Score the final model. If the run is asked to stop meanwhile, it also writes a checkpoint, so a resumed run
        can repeat this.
        """
        if self.stopped:
            return
        evaluations, selection = self._evaluations, self._selection
        if not selection.scored_finally and (scored := evaluations.score_model(split)):
            evaluations.record(split, scored, best=selection.best_on(split))
        if self.stopped:
            self.save()

    def checkpoint_if_due(self) -> None:
        """Save a checkpoint, if one is due."""
        if self._save_agreed and not self.stopped:
            self._quiesce()
            quiesce_seconds = 0.0 if self._feed.position.done else self._quiesce_seconds
            self._checkpoints.save(partial(self._state, self._feed.coming), quiesce_seconds)
            self._save_agreed = False

    def save(self) -> None:
        """Write the model into the run folder: the dense weights that are evaluated, and every PS's tables. A run that
        was asked to stop writes a checkpoint instead, if it has advanced.
        """
        self._quiesce()
        if self.stopped:
            if self._feed.advanced:
                self._checkpoints.save_and_stop(partial(self._state, self._feed.position))
            return
        model = self._snapshots.of_model(self._model.weights())
        if self._results and not self._selection.put_in_place():
            self._checkpoints.save_model(model)
        self._checkpoints.wait_for_the_first()

    def goodbye(self) -> None:
        """Close the conversations with all servers and write the results."""
        self.progress.save_losses(self.config.run.path / f"losses-{self.world.index}.npy")
        if self._results:
            self._results.finish(stopped=self.stopped, ended_by=self._selection.ended_by, kept=self._selection.model)
            if not self.stopped:
                self._selection.close()
        self.tables.goodbye()
        self.synchronizers[0].exchange.goodbye()

    def _quiesce(self) -> None:
        """Wait until every push of every trainer has been applied."""
        self.tables.drain()
        wait(self.world.trainers.ibarrier(), self.config.waiting, "the other trainers (to finish their pushes)")

    def _sweep(self) -> None:
        """Let dynamic tables free rows, and rows catch up with the decay of their tables, while all trainers rest.
        Scores, checkpoints and further training follow.
        """
        if not (self.tables.placement.keyed or self.config.embedding.table_decay):
            return
        self._quiesce()
        self.tables.begin_clocks()
        if self._results:
            counts = self.tables.sweep(self._feed.examples)
            self._results.swept(dict(zip(self._reader.manifest.features.keyed, counts, strict=True)))
        wait(self.world.trainers.ibarrier(), self.config.waiting, "the first trainer (to free rows, or let them decay)")

    def _gathered(self, trainer: int, report: TrainerReport) -> None:
        """Take a trainer's report, on the first one; with its own it also exchanges status with the embedding PSs."""
        assert self._results
        if trainer == self.world.index:
            self._results.rows_saved(self.tables.exchange_status(self.progress.examples_of_all))
        self._results.logbook.gathered(trainer, report)
        self._notes.write_if_due()

    def _run_so_far(self) -> dict[str, Any]:
        """What the first trainer alone knows of the run, as JSON."""
        assert self._results
        return {
            "logbook": self._results.logbook.numbers(),
            "evaluations": self._results.evaluations,
            KEYS: self._results.keys,
            SELECTION: asdict(self._selection.state),
            "checked": sorted(self._feed.checked),
        }

    def _checkpoint_due(self) -> bool:
        """Whether this trainer knows that a checkpoint is due; only the first one does."""
        return self._checkpoints.due(self.progress.examples_of_all)

    def _state(self, position: Position) -> Snapshot:
        """This trainer's part of a checkpoint that resumes at ``position``; call while the threads are paused."""
        return self._snapshots.of_trainer(self._model.weights(), position, asdict(self._selection.state))

    def _report(self, finished: bool) -> TrainerReport:
        """The counters that the first trainer collects."""
        quality = self.progress.quality()
        return TrainerReport(
            stop=float(self._stop.stopping), finished=float(finished), examples=float(self.progress.examples),
            iterations=float(self.batches), **sync.figures(self.synchronizers),
            traffic=self.world.traffic.totals(), sums=quality.sums, histogram=quality.histogram,
        )  # fmt: skip
