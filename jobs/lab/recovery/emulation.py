"""One training run with scheduled losses of embedding PSs, under one strategy.

Training, saves and reloads are real, time is emulated: the run stands for a job of ``T_total``, and the times of
saving, loading and rescheduling are given figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from jobs.lab.recovery.servers import SavedServer, tracker_of
from jobs.lab.recovery.training import Batches, Training
from ssmpi.config import Config
from ssmpi.embedding.trackers import largest_tables, scope_of
from ssmpi.runtime.files.run_files import ROWS
from ssmpi.state.recovery import ledger
from ssmpi.state.recovery.policy import RecoveryInputs


@dataclass(frozen=True)
class SavingStrategy:
    """``interval`` is T_save in seconds of the emulated job. ``tracker`` selects a ``fraction`` of the rows, which is
    saved after that fraction of the interval; empty: all rows. With ``full`` all ranks return to the last save. Saves
    are ``checkpoints``, which cost O_save, or row saves during training, which cost O_rows.
    """

    name: str
    interval: float
    tracker: str = ""
    fraction: float = 1.0
    full: bool = False
    checkpoints: bool = False

    @property
    def between_saves(self) -> float:
        """Seconds from one save to the next."""
        return self.interval * self.fraction


@dataclass(frozen=True)
class Loss:
    """The memory of these PSs is lost at ``seconds`` of the emulated job."""

    seconds: float
    servers: tuple[int, ...]


def schedule(given: RecoveryInputs, at_once: int, seed: int, shape: float = 1.0) -> list[Loss]:
    """Losses of ``at_once`` PSs each, at gamma-distributed intervals of this ``shape`` with mean T_fail, the first from
    the job's start; 1 is exponential. CPR fits a gamma distribution to the lives of jobs.
    """
    generator = np.random.default_rng([seed, 11])
    losses, now = [], float(generator.gamma(shape, given.mtbf_seconds / shape))
    while now < given.total_seconds:
        servers = generator.choice(given.servers, at_once, replace=False)
        losses.append(Loss(now, tuple(sorted(servers.tolist()))))
        now += float(generator.gamma(shape, given.mtbf_seconds / shape))
    return losses


@dataclass(frozen=True, kw_only=True)
class EmulationResult:
    """The result of a run under a strategy. Overheads are shares of T_total: ``saving`` (O_save or O_rows per full set
    of rows written, compactions included), ``loading``, ``lost`` (repeated training) and ``restarting``.
    ``updates_lost`` is the lost share of all accesses (lookups of examples), ``large_lost`` that of the large tables,
    from which priority selects, ``batches_lost`` that of all accesses if a row counts once per batch; ``coverage`` is
    the mean share that a priority save covered, NaN without priority saves.
    """

    strategy: str
    seed: int
    losses: int
    saving: float
    loading: float
    lost: float
    restarting: float
    pls: float
    updates_lost: float
    large_lost: float
    batches_lost: float
    coverage: float
    ne: float
    auc: float

    @property
    def overhead(self) -> float:
        """The sum of all overheads."""
        return self.saving + self.loading + self.lost + self.restarting


class RecoveryEmulation:
    """A run of ``config`` whose PSs save to ``folder``."""

    def __init__(self, config: Config, given: RecoveryInputs, strategy: SavingStrategy, folder: Path) -> None:
        self._given, self._strategy = given, strategy
        self._batches = Batches(config)
        self.training = Training(config, self._batches.cardinalities)
        self._size, self._seed = config.data.batch_size, config.run.seed
        (folder / ROWS).mkdir(parents=True, exist_ok=True)
        self.servers = [self._server(index, folder) for index in range(given.servers)]
        self._dense, self._saved_at = self.training.dense(), 0
        self._trained_again = 0

    def _server(self, index: int, folder: Path) -> SavedServer:
        arena, scope, make = self.training.arenas[index], scope_of(self.training.placement, index), None
        if self._strategy.tracker:
            make = partial(tracker_of, self._strategy.tracker, self._strategy.fraction, scope, arena)
        path = folder / ROWS / f"embedding-{index:04}.rows"
        return SavedServer(arena, path, scope, make, self._strategy.fraction)

    def run(self, losses: list[Loss]) -> EmulationResult:
        """Train to the end with these losses."""
        done, waiting, saves = 0, list(losses), self._saves()
        lookups, updates = 0, 0
        due = next(saves)
        while done < len(self._batches):
            for batch in self._batches.from_number(done):
                self.training.step(batch, self._samples(done))
                done += 1
                lookups, updates = lookups + self.training.looked_up, updates + self.training.updated
                while done >= due:
                    self._save(done)
                    due = next(saves)
                reached = done
                while waiting and done >= self._batch_of(waiting[0].seconds):
                    done = self._lose(waiting.pop(0), done)
                if done < reached:
                    break
        return self._outcome(len(losses), lookups, updates)

    def _saves(self) -> Iterator[int]:
        """The number of batches after which each save is due; the last is beyond the run."""
        seconds = self._strategy.between_saves
        for k in range(1, int(self._given.total_seconds / seconds + 1e-9) + 1):
            yield self._batch_of(k * seconds)
        yield len(self._batches) + 1

    def _batch_of(self, seconds: float) -> int:
        """The number of batches trained by then, at least one."""
        return max(1, round(seconds / self._given.total_seconds * len(self._batches)))

    def _samples(self, done: int) -> int:
        return min(done * self._size, self._batches.samples)

    def _save(self, done: int) -> None:
        for server in self.servers:
            server.save(self._samples(done))
        if self._strategy.full:
            self._dense, self._saved_at = self.training.dense(), done

    def _lose(self, loss: Loss, done: int) -> int:
        """Apply a loss; returns the number of batches after which training continues."""
        if not self._strategy.full:
            for index in loss.servers:
                self.servers[index].lose(self._samples(done))
            return done
        for server in self.servers:
            server.reload()
        self.training.restore_dense(self._dense)
        self._trained_again += done - self._saved_at
        return self._saved_at

    def _outcome(self, losses: int, lookups: int, updates: int) -> EmulationResult:
        given, tallies = self._given, [server.tally for server in self.servers]
        written = sum(tally.written for tally in tallies) / sum(server.base_bytes for server in self.servers)
        coverage = [share for tally in tallies for share in tally.coverage]
        quality, cardinalities = self.training.quality(), self._batches.cardinalities
        large = len(largest_tables(cardinalities))
        cost = given.save_seconds if self._strategy.checkpoints else given.row_save_seconds
        return EmulationResult(
            strategy=self._strategy.name,
            seed=self._seed,
            losses=losses,
            saving=written * cost / given.total_seconds,
            loading=losses * given.load_seconds / given.total_seconds,
            lost=self._trained_again / len(self._batches),
            restarting=losses * given.restart_seconds / given.total_seconds,
            pls=ledger.pls([server.account for server in self.servers], self._batches.samples),
            updates_lost=sum(tally.updates_lost for tally in tallies) / lookups,
            large_lost=sum(tally.large_lost for tally in tallies) / (lookups * large / len(cardinalities)),
            batches_lost=sum(tally.batches_lost for tally in tallies) / updates,
            coverage=float(np.mean(coverage)) if coverage else math.nan,
            ne=quality["ne"],
            auc=quality["auc"],
        )
