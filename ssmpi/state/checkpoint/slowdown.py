"""How much slower training is while a checkpoint is written in the background."""

from __future__ import annotations

from typing import NamedTuple

LEAST_SECONDS = 10.0  # of training at least, to measure its rate
OLDER = 0.5  # weight of the time before the last checkpoint, relative to the time after it


class _Span(NamedTuple):
    """A period of training, and the examples trained on in it."""

    seconds: float = 0.0
    examples: float = 0.0

    def plus(self, other: _Span, weight: float = 1.0) -> _Span:
        return _Span(self.seconds + weight * other.seconds, self.examples + weight * other.examples)


class Slowdown:
    """Compares the training rate while a checkpoint is written with the rate before it."""

    def __init__(self) -> None:
        self._last: _Span | None = None
        self._before, self._recent, self._writing = _Span(), _Span(), _Span()

    def tick(self, examples: int, seconds: float, *, writing: bool) -> None:
        """Training has reached ``examples`` after ``seconds``, standstills excluded; ``writing`` says whether a
        checkpoint was being written since the last call.
        """
        now = _Span(seconds, examples)
        passed = now.plus(self._last or now, -1.0)
        self._last = now
        if writing:
            self._writing = self._writing.plus(passed)
        else:
            self._recent = self._recent.plus(passed)

    def end(self) -> float:
        """A checkpoint is written. Returns the seconds of training lost meanwhile: the time taken for its examples less
        their time at the earlier rate; negative if training was faster. At most the time of writing, either way; 0 if
        the earlier rate is unknown.
        """
        before, writing = self._recent.plus(self._before, OLDER), self._writing
        self._before, self._recent, self._writing = before, _Span(), _Span()
        if not before.examples or before.seconds < min(writing.seconds, LEAST_SECONDS):
            return 0.0
        return max(writing.seconds - writing.examples * before.seconds / before.examples, -writing.seconds)
