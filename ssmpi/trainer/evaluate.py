"""Scores a split with all threads of all trainers and merges their quality by one reduction: in training, or with a
finished model, whose dense weights are here and whose tables are here or on embedding PSs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from ssmpi.data.batch import Batch
from ssmpi.data.reader import SplitReader, batches
from ssmpi.embedding.client import Lookups
from ssmpi.model.replica import Replica
from ssmpi.runtime.errors import DIVERGED, TrainingError
from ssmpi.runtime.host.clock import Clock
from ssmpi.runtime.mpi.failure import start
from ssmpi.runtime.mpi.waiting import WaitOptions, wait
from ssmpi.runtime.quality import BINS, Quality
from ssmpi.runtime.stop import Stop
from ssmpi.state.checkpoint.data_origin import DataOrigin
from ssmpi.state.recovery.start import Start
from ssmpi.trainer.control import check, share
from ssmpi.trainer.group_scores import WHOM, GroupScores, gauc
from ssmpi.trainer.metrics.results import RunResults, Scored
from ssmpi.trainer.tables import open_tables

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.data.feed import Feed
    from ssmpi.data.schema import DatasetManifest
    from ssmpi.model.replica import ThreadModel
    from ssmpi.runtime.mpi.world import World
    from ssmpi.runtime.run_options import EvaluateOptions
    from ssmpi.trainer.snapshot import CommonModel

EVALUATION_THREADS = 500  # message tags of evaluating threads start here, after the worker threads'


@dataclass
class ThreadScores:
    """What one thread has scored."""

    groups: GroupScores
    quality: Quality = field(default_factory=Quality)


@dataclass
class Evaluator:
    """Scores splits of the data in ``folder``. ``lookups`` and ``scoring_model`` create each thread's own objects."""

    options: EvaluateOptions
    folder: Path
    world: World
    lookups: Callable[[int], Lookups]
    scoring_model: Callable[[np.ndarray], ThreadModel]
    stop: Stop
    _checked: set[str] = field(default_factory=set, init=False)

    def run(self, split: str, vector: np.ndarray, waiting: WaitOptions) -> dict[str, float] | None:
        """Metrics of ``vector`` on one split, the same on every trainer; None if a trainer was asked to stop meanwhile.
        The first time, the contents of the split are verified in the background, so that damaged rows are never scored
        silently. All trainers must call it, while training is paused.
        """
        reader, trainers = SplitReader(self.folder, split, 16 * self.options.batch_size), self.world.trainers
        checking = []
        if split not in self._checked:
            shards = share(range(len(reader.shards)), set(), trainers.rank, trainers.size)
            shards_until_told = takewhile(lambda _: not self.stop.stopping, shards)
            checking = [start(self.world, "check", check, reader, shards_until_told, lambda _: None)]
            self._checked.add(split)
        found = self.measure(reader, range(len(reader.blocks)), vector, waiting, checking)
        return {"rows": float(found[0].sums[0]), **found[0].compute(), **found[1]} if found else None

    def measure(
        self, reader: SplitReader, blocks: Sequence[int], vector: np.ndarray, waiting: WaitOptions,
        checking: Sequence[Thread] = (),
    ) -> tuple[Quality, dict[str, float]] | None:  # fmt: skip
        """The quality of ``vector`` on some blocks, and metrics that do not follow from it, the same on every trainer;
        None if a trainer was asked to stop meanwhile. Also waits for the threads that are ``checking`` the rows.
        TrainingError if a score is not finite.
        """
        trainers, group = self.world.trainers, reader.manifest.group
        parts = [ThreadScores(groups=GroupScores(group)) for _ in range(self.world.topology.threads)]
        threads = [
            start(self.world, f"evaluate {k}", self._score, (reader, blocks), vector, k, part)
            for k, part in enumerate(parts)
        ]
        for thread in (*threads, *checking):
            thread.join()
        mine = Quality()
        for part in parts:
            mine.merge(part.quality)
        words = np.concatenate([[float(self.stop.stopping)], mine.sums, mine.histogram.reshape(-1)])
        wait(trainers.iallreduce(words), waiting, WHOM)
        if words[0]:
            return None
        edge = words.size - 2 * BINS
        quality = Quality(words[edge:].astype(np.int64).reshape(2, BINS), words[1:edge])
        if quality.sums[0] < sum(reader.blocks[number].rows for number in blocks):
            raise TrainingError(
                f"{reader.folder}: some scores are not finite: {DIVERGED}, or values of these rows are far too large"
            )
        return quality, gauc([part.groups for part in parts], words[1], trainers, waiting)

    def _score(
        self, rows_of: tuple[SplitReader, Sequence[int]], vector: np.ndarray, thread: int, found: ThreadScores
    ) -> None:
        """One thread's share of some blocks of a reader: every ``threads * trainers``-th."""
        (reader, blocks), model = rows_of, self.scoring_model(vector)
        lookups = self.lookups(EVALUATION_THREADS + thread)
        trainers, threads = self.world.trainers, self.world.topology.threads
        first, step = trainers.rank * threads + thread, trainers.size * threads
        for batch, rows in lookups.prefetched(self._batches(reader, blocks[first::step])):
            logits = model.score(batch.dense, rows.values)
            found.quality.add(logits, batch.labels)
            found.groups.add(batch, logits)

    def _batches(self, reader: SplitReader, numbers: Sequence[int]) -> Iterator[Batch]:
        """The batches of some blocks in file order, until asked to stop."""
        for number in numbers:
            if self.stop.stopping:
                return
            yield from batches(reader.read(reader.blocks[number]), self.options.batch_size)


@dataclass
class Evaluations:
    """A trainer's evaluations during a run: scored, and recorded if there are ``results``, on the first trainer. Every
    trainer makes the same calls, while training is paused. ``data`` knows the splits. The common ``model`` is scored
    once ``quiesce`` has returned: then all pushes are applied.
    """

    evaluator: Evaluator
    data: DatasetManifest
    waiting: WaitOptions
    results: RunResults | None
    model: CommonModel
    quiesce: Callable[[], None]

    @property
    def options(self) -> EvaluateOptions:
        """The ``[evaluate]`` section."""
        return self.evaluator.options

    @property
    def stopped(self) -> bool:
        """Whether all trainers have agreed to stop, perhaps in the middle of an evaluation."""
        return self.evaluator.stop.stopped

    def has(self, split: str) -> bool:
        """Whether a split can be scored."""
        return self.data.has_rows(split) and self.data.labelled

    def score_model(self, split: str) -> Scored | None:
        """Score the common model on a split, if the data set has it."""
        if not self.has(split):
            return None
        self._quiesce()
        return self.score(split, self.model.weights())

    def _quiesce(self) -> None:
        self.quiesce()
        if self.results:
            self.results.logbook.window()

    def score(self, split: str, vector: np.ndarray) -> Scored | None:
        """Score weights on a split. None, on all trainers, if a stop interrupted it."""
        clock = Clock()
        metrics = self.evaluator.run(split, vector, self.waiting)
        if metrics is None:
            self.evaluator.stop.agree()
            return None
        return Scored(vector, metrics, clock.wall)

    def score_ahead(self, part: int, feed: Feed) -> bool:
        """With ``evaluate.progressive``, score the common model on a part whose rows nobody has seen, and record that;
        False if it was done before. All trainers may have to stop after it. The rows are verified before they are
        dealt: damaged ones end the run there.
        """
        blocks = feed.unseen() if self.options.progressive else []
        if not blocks or self._is_scored_ahead(part):
            return False
        self._quiesce()
        vector, clock = self.model.weights(), Clock()
        found = self.evaluator.measure(feed.reader, blocks, vector, self.waiting)
        if found is None:
            self.evaluator.stop.agree()
        elif self.results:
            self.results.scored_ahead(part, *found, clock.wall)
        return True

    def _is_scored_ahead(self, part: int) -> bool:
        """Whether a part was scored before, as the first trainer knows it. Every trainer calls it."""
        scored = np.array([self.results is not None and self.results.is_scored_ahead(part)], np.float32)
        self.share(scored, "trainer 0 (to score the next rows)")
        return bool(scored[0])

    def record(self, split: str, scored: Scored, best: bool | None = None) -> None:
        """Record an evaluation; see ``RunResults.evaluated``."""
        if self.results:
            self.results.evaluated(split, scored, best, self.options.metric)

    def share(self, values: np.ndarray, whom: str, waiting: WaitOptions | None = None) -> None:
        """Broadcast the first trainer's ``values``."""
        wait(self.evaluator.world.trainers.ibcast(values), waiting or self.waiting, whom)


class Scorer:
    """Scores with the model saved in the folder ``model``, whose network is that of ``config``."""

    def __init__(self, config: Config, world: World, model: Path) -> None:
        self._config, self._world = config, world
        world.start_heartbeat(config.waiting)
        self._tables = open_tables(config, world, DataOrigin.of_model(model, config.data.folder), Start(model))
        self._replica = Replica.saved(config.network, config.model.precision, model / "dense.h5")

    def evaluate(self, split: str) -> dict[str, float]:
        """Metrics on one split of the data folder; every trainer takes part and gets the same."""
        folder = Path(self._config.data.folder)
        evaluator = Evaluator(
            self._config.evaluate, folder, self._world, partial(Lookups, self._tables), self._replica.scoring_model,
            Stop(),
        )  # fmt: skip
        metrics = evaluator.run(split, self._replica.vector, self._config.waiting)
        assert metrics is not None
        return metrics

    def scores(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, np.ndarray]]:
        """Each batch with its logits float32 (batch,), in order, on this thread."""
        model = self._replica.scoring_model()
        for batch, rows in Lookups(self._tables, 0).prefetched(batches):
            yield batch, model.score(batch.dense, rows.values)

    def goodbye(self) -> None:
        """Tell the embedding PSs that no more requests follow."""
        self._tables.goodbye()
