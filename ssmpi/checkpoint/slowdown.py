"""How much slower training is while a checkpoint is written beside it."""

from __future__ import annotations

from typing import NamedTuple

LEAST_SECONDS = 10.0  # of training tell its rate, however long the writing takes
OLDER = 0.5  # the weight of what was before the last checkpoint, against what came after it


class _Span(NamedTuple):
    """A time of training, and what was trained on in it."""

    seconds: float = 0.0
    examples: float = 0.0

    def plus(self, other: _Span, weight: float = 1.0) -> _Span:
        return _Span(self.seconds + weight * other.seconds, self.examples + weight * other.examples)


class Slowdown:
    """Compares the examples a second of training while a checkpoint is written with those before it was begun."""

    def __init__(self) -> None:
        self._last: _Span | None = None
        self._before, self._recent, self._writing = _Span(), _Span(), _Span()

    def tick(self, examples: int, seconds: float, *, writing: bool) -> None:
        """Training has come to so many examples in so many seconds, without those that it stood still for; since the
        last call a checkpoint was being written, or not.
        """
        now = _Span(seconds, examples)
        passed = now.plus(self._last or now, -1.0)
        self._last = now
        if writing:
            self._writing = self._writing.plus(passed)
        else:
            self._recent = self._recent.plus(passed)

    def lost(self) -> float:
        """Seconds that training has lost while a checkpoint was written: those that it took for its examples, less what
        these take at the rate before; less than 0 if it was faster. Not more than the writing took, either way; 0 where
        too little was trained before to know the rate. The next checkpoint is a new one.
        """
        before, writing = self._recent.plus(self._before, OLDER), self._writing
        self._before, self._recent, self._writing = before, _Span(), _Span()
        if not before.examples or before.seconds < min(writing.seconds, LEAST_SECONDS):
            return 0.0
        return max(writing.seconds - writing.examples * before.seconds / before.examples, -writing.seconds)
