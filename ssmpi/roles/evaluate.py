"""Scores a split with all threads of all trainers and merges their quality by one reduction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ssmpi.comm.waiting import Patience, wait
from ssmpi.core.metrics import BINS, Quality
from ssmpi.core.settings import COUNT, require, within
from ssmpi.data.batch import Batch
from ssmpi.data.reader import SplitReader, batches
from ssmpi.embedding.client import Lookups
from ssmpi.roles.shard_check import check, share

if TYPE_CHECKING:
    from ssmpi.comm.messages import Conversation
    from ssmpi.model.replica import Twin

NONE = "none"  # instead of a split
EVALUATION_THREADS = 500  # message tags of evaluating threads start here, clear of the worker threads'


@dataclass(frozen=True)
class Options:
    """The ``[evaluate]`` section.

    ``split`` is scored ``per_pass`` times in each pass, ``final`` once at the end; ``none`` is none. The default ones are
    left out where the data set does not have them. ``replica`` also scores the first trainer's own replica at the end.

    ``keep`` is which model the run leaves: the ``last``, or the ``best``, of the evaluation of ``split`` with the lowest NE.
    Training ends early after ``patience`` evaluations of ``split`` in a row without gain, which is an NE that is more than
    ``min_gain`` lower than at the last gain, and as soon as the AUC of ``split`` is ``stop_at_auc``; 0 means never.
    """

    split: str = "validation"
    final: str = "test"
    per_pass: int = 1
    batch_size: int = 2048
    replica: bool = False
    keep: Literal["last", "best"] = "last"
    patience: int = 0
    min_gain: float = 0.0
    stop_at_auc: float = 0.0

    def __post_init__(self) -> None:
        within("per_pass", self.per_pass, 1, 100_000)
        within("batch_size", self.batch_size, 1, COUNT)
        within("patience", self.patience, 0, COUNT)
        require(0 <= self.min_gain < 1, f"min_gain must be in [0, 1), got {self.min_gain}")
        require(0 <= self.stop_at_auc < 1, f"stop_at_auc must be in [0, 1), got {self.stop_at_auc}")
        require(self.patience > 0 or not self.min_gain, "min_gain says what a gain is for patience: set patience too")
        if self.rule:
            require(
                self.split not in ("", NONE),
                f"{self.rule} needs evaluations while training: set evaluate.split to a split of the data",
            )

    @property
    def rule(self) -> str:
        """A setting that decides by evaluations of ``split``; empty where none does."""
        if self.keep == "best":
            return 'keep = "best"'
        if self.patience:
            return f"patience = {self.patience}"
        return f"stop_at_auc = {self.stop_at_auc:g}" if self.stop_at_auc else ""


class Scored(NamedTuple):
    """One evaluation: of which weights, what was found, and how long it took."""

    vector: np.ndarray
    metrics: dict[str, float]
    seconds: float


@dataclass
class Evaluator:
    """What scoring needs of a trainer. ``lookups`` and ``twin`` make a thread's own; ``start`` makes a guarded thread."""

    folder: Path
    options: Options
    threads: int
    trainers: Conversation
    lookups: Callable[[int], Lookups]
    twin: Callable[[np.ndarray], Twin]
    start: Callable[..., Any]
    stopping: Callable[[], bool]
    checked: set[str] = field(default_factory=set)

    def run(self, split: str, vector: np.ndarray, patience: Patience) -> dict[str, float] | None:
        """Metrics of ``vector`` on one split, the same on every trainer; None if one was told to stop meanwhile. The first time
        the contents of the split are checked beside it: no figures of damaged rows.

        All trainers must call, at rest.
        """
        reader = SplitReader(self.folder, split, 16 * self.options.batch_size)
        parts = [Quality() for _ in range(self.threads)]
        threads = [self.start(f"evaluate {k}", self._score, reader, vector, k, parts[k]) for k in range(self.threads)]
        if split not in self.checked:
            shards = share(range(len(reader.shards)), set(), self.trainers.rank, self.trainers.size)
            shards_until_told = takewhile(lambda _: not self.stopping(), shards)
            threads.append(self.start("check", check, reader, shards_until_told, lambda _: None))
            self.checked.add(split)
        for thread in threads:
            thread.join()
        mine = Quality()
        for part in parts:
            mine.merge(part)
        words = np.concatenate([[float(self.stopping())], mine.sums, mine.histogram.reshape(-1)])
        wait(self.trainers.iallreduce(words), patience, "the other trainers (to evaluate)")
        if words[0]:
            return None
        edge = words.size - 2 * BINS
        quality = Quality(words[edge:].astype(np.int64).reshape(2, BINS), words[1:edge])
        return {"rows": float(words[1]), **quality.compute()}

    def _score(self, reader: SplitReader, vector: np.ndarray, thread: int, quality: Quality) -> None:
        """One thread's share: every ``threads * trainers``-th block."""
        twin, lookups = self.twin(vector), self.lookups(EVALUATION_THREADS + thread)
        first, step = self.trainers.rank * self.threads + thread, self.trainers.size * self.threads
        for batch, rows in lookups.prefetched(self._batches(reader, range(first, len(reader.blocks), step))):
            assert batch.labels is not None
            quality.add(twin.score(batch.dense, rows.values), batch.labels)

    def _batches(self, reader: SplitReader, numbers: range) -> Iterator[Batch]:
        """The batches of some blocks in file order, until told to stop."""
        for number in numbers:
            if self.stopping():
                return
            yield from batches(reader.read(reader.blocks[number]), self.options.batch_size)
