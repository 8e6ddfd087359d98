"""When to save, and how long it may take."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ssmpi.core.settings import COUNT, EXAMPLES, SECONDS, positive, within


@dataclass(frozen=True)
class Options:
    """The ``[checkpoint]`` section.

    A checkpoint is due ``every_minutes`` after the last one, or ``every_examples`` over all trainers after it, whichever
    comes first; 0 means never. The newest ``keep`` stay. With ``background`` an embedding PS copies its rows and
    writes the copy while training goes on; without, or where memory has no room for the copy, training waits.
    A run asked to stop saves within ``stop_budget_seconds`` or gives up; any other save has ``limit_seconds``.
    """

    every_minutes: float = 30.0
    every_examples: int = 0
    keep: int = 2
    background: bool = True
    stop_budget_seconds: float = 60.0
    limit_seconds: float = 3600.0

    def __post_init__(self) -> None:
        within("every_minutes", self.every_minutes, 0.0, SECONDS)
        within("every_examples", self.every_examples, 0, EXAMPLES)
        within("keep", self.keep, 1, COUNT)
        positive("stop_budget_seconds", self.stop_budget_seconds, SECONDS)
        positive("limit_seconds", self.limit_seconds, SECONDS)


class Due:
    """Says when the next checkpoint is due."""

    def __init__(self, options: Options, examples: int) -> None:
        self._options = options
        self.saved(examples)

    def saved(self, examples: int) -> None:
        """A checkpoint was begun after this many examples, or failed to be: either way the next one waits its time."""
        self._examples, self._at = examples, time.monotonic()

    def now(self, examples: int) -> bool:
        """Whether one is due after this many examples."""
        options = self._options
        late = bool(options.every_minutes) and time.monotonic() - self._at >= 60 * options.every_minutes
        return late or (bool(options.every_examples) and examples - self._examples >= options.every_examples)
