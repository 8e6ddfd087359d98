"""Which trainers are slow: a rule over the examples that each has done, and over what time it is applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

SLOW = 0.5  # of the median of the other trainers
MEASURED_SECONDS = 60.0  # of training


def slow_trainers(examples: Mapping[int, float]) -> dict[int, float]:
    """The trainers that have done less than ``SLOW`` times the median of the others, with this median, given the
    examples of each in the same time.
    """
    if len(examples) < 2:
        return {}
    others = {trainer: median(n for other, n in examples.items() if other != trainer) for trainer in examples}
    return {trainer: most for trainer, most in others.items() if examples[trainer] < SLOW * most}


class PaceWatch:
    """Applies the rule to every ``MEASURED_SECONDS`` in which all of some ``trainers`` train: not while training
    pauses, nor at the end of a part, when a trainer may have nothing left to do. Times are seconds of any clock.
    """

    def __init__(self, trainers: Iterable[int]) -> None:
        self._latest = dict.fromkeys(trainers, 0.0)
        self._since: float | None = None
        self._at_start = dict(self._latest)
        self._done, self._seconds = dict.fromkeys(self._latest, 0.0), 0.0
        self._slow: set[int] = set()

    def begin(self, now: float) -> None:
        """All trainers train from now on."""
        self._since, self._at_start = now, dict(self._latest)

    def rest(self, now: float) -> None:
        """Some trainer trains no more."""
        if self._since is None:
            return
        self._seconds += now - self._since
        self._since = None
        for trainer, before in self._at_start.items():
            self._done[trainer] += self._latest[trainer] - before

    def report(self, trainer: int, examples: float, now: float, *, finished: bool) -> dict[int, float]:
        """Take a trainer's examples so far, and whether it has ``finished`` its part. Returns the examples of all in
        the time measured if a trainer has become slow, else nothing.
        """
        if trainer in self._latest:
            self._latest[trainer] = examples
        if finished:
            self.rest(now)
        if self._since is None or self._seconds + now - self._since < MEASURED_SECONDS:
            return {}
        self.rest(now)
        done, slow = self._done, set(slow_trainers(self._done))
        known, self._slow = self._slow, slow
        self._done, self._seconds = dict.fromkeys(done, 0.0), 0.0
        self.begin(now)
        return done if slow - known else {}
