"""Rounds among replicas of one process: when they are due, and what they do, with the merges of ``ssmpi.sync``.

``gap`` and ``staleness`` are in ticks; in a tick every worker thread does one iteration.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ssmpi.core.protocols import DenseStep
from ssmpi.sync.bmuf import BMUFOptions, filter_mean
from ssmpi.sync.elastic import pull_center
from ssmpi.sync.exchange import merge_difference, merge_interpolate
from ssmpi.sync.options import RoundOptions


class LockstepRounds:
    """No rounds, as ``sync.algorithm = "none"``: the model is the first trainer's replica.

    ``replicas`` are the live vectors of all trainers, float32 (parameters,) each. A gap below 1 means several rounds
    per tick.
    """

    def __init__(self, options: RoundOptions, replicas: Sequence[np.ndarray], gap: float, staleness: int) -> None:
        self.replicas, self.alpha, self.count = replicas, options.alpha, 0
        self._gap, self._staleness = gap, staleness
        self._merge = merge_difference if options.merge == "difference" else merge_interpolate
        self._under_way: list[tuple[int, int, np.ndarray, np.ndarray]] = []

    def after_tick(self, tick: int, training: Sequence[int]) -> None:
        """Called after tick ``tick`` with the trainers that took part in it."""
        self.merge_until(tick)

    def close(self) -> None:
        """Called when all trainers have finished a part of the run."""
        self.merge_until(None)

    def model(self) -> np.ndarray:
        """The vector to evaluate, float32 (parameters,)."""
        return self.replicas[0].copy()

    def optimizer(self, trainer: int, thread: int, own: DenseStep) -> DenseStep:
        """The optimizer of a worker thread: ``own``, unless the rounds provide another one."""
        return own

    @property
    def figures(self) -> dict[str, float]:
        """The figures of the rounds for the results."""
        return {"rounds": self.count}

    def due(self, tick: int, shift: float = 0.0) -> int:
        """The number of rounds that begin after this tick."""
        return int(tick / self._gap + shift) - int((tick - 1) / self._gap + shift)

    def move(self, tick: int, trainer: int, reference: np.ndarray, snapshot: np.ndarray) -> None:
        """Merge a round that began after ``tick`` into a replica, at once or after ``staleness`` ticks."""
        self._under_way.append((tick + self._staleness, trainer, reference, snapshot))
        self.merge_until(tick)

    def merge_until(self, tick: int | None) -> None:
        """Perform the merges that are due by this tick; None: all pending ones."""
        waiting, self._under_way = self._under_way, []
        for due, trainer, reference, snapshot in waiting:
            if tick is None or due <= tick:
                self._merge(self.replicas[trainer], reference, snapshot, self.alpha)
            else:
                self._under_way.append((due, trainer, reference, snapshot))


class MeanRounds(LockstepRounds):
    """S-MA: all replicas move towards the mean of those that train."""

    def after_tick(self, tick: int, training: Sequence[int]) -> None:
        """As the base class."""
        super().after_tick(tick, training)
        for _ in range(self.due(tick)):
            self.average(tick, training)

    def average(self, tick: int, counted: Sequence[int]) -> None:
        """One round: the mean is over the replicas ``counted``, and all replicas move."""
        snapshots = [replica.copy() for replica in self.replicas]
        reference = self.refer(np.stack([snapshots[k] for k in counted]).mean(axis=0))
        for trainer, snapshot in enumerate(snapshots):
            self.move(tick, trainer, reference, snapshot)
        self.count += 1

    def refer(self, mean: np.ndarray) -> np.ndarray:
        """The vector that replicas move towards, given the mean: the mean itself."""
        return mean

    def model(self) -> np.ndarray:
        """The mean of all replicas."""
        mean: np.ndarray = np.stack(self.replicas).mean(axis=0)
        return mean


class FilteredRounds(MeanRounds):
    """S-BMUF: all replicas move towards the filtered mean, and after each part of the run once more."""

    def __init__(self, options: RoundOptions, replicas: Sequence[np.ndarray], gap: float, staleness: int) -> None:
        super().__init__(options, replicas, gap, staleness)
        own = options.own(BMUFOptions)
        self._coefficients = own.eta, own.momentum, own.momentum if own.nesterov else 0.0
        self._global = replicas[0].copy()
        self._reference = replicas[0].copy() if own.nesterov else self._global  # Nesterov: ahead of the model
        self._delta = np.zeros_like(self._global)

    def refer(self, mean: np.ndarray) -> np.ndarray:
        """The filtered reference; a copy, because pending rounds keep theirs."""
        filter_mean(mean, self._global, self._delta, self._reference, self._coefficients)
        return self._reference.copy()

    def close(self) -> None:
        """As the base class, then a final block over all replicas."""
        super().close()
        self.average(0, range(len(self.replicas)))
        super().close()

    def model(self) -> np.ndarray:
        """The global model."""
        return self._global.copy()


class CenterRounds(LockstepRounds):
    """Rounds of each trainer with a center, which is the model; trainers take turns within the gap."""

    def __init__(self, options: RoundOptions, replicas: Sequence[np.ndarray], gap: float, staleness: int) -> None:
        super().__init__(options, replicas, gap, staleness)
        self._center = replicas[0].copy()

    def after_tick(self, tick: int, training: Sequence[int]) -> None:
        """As the base class."""
        super().after_tick(tick, training)
        for trainer in training:
            for _ in range(self.due(tick, trainer / len(self.replicas))):
                self._exchange(tick, trainer)

    def _exchange(self, tick: int, trainer: int) -> None:
        """One round of a trainer."""
        raise NotImplementedError

    def close(self) -> None:
        """As the base class, then a final round of every trainer."""
        super().close()
        for trainer in range(len(self.replicas)):
            self._exchange(0, trainer)
        super().close()

    def model(self) -> np.ndarray:
        """The center."""
        return self._center.copy()


class ElasticRounds(CenterRounds):
    """S-EASGD: replica and center move towards each other."""

    def _exchange(self, tick: int, trainer: int) -> None:
        snapshot, before = self.replicas[trainer].copy(), np.empty_like(self._center)
        pull_center(self._center, snapshot, self.alpha, before)
        self.move(tick, trainer, before, snapshot)
        self.count += 1
