"""When the next checkpoint is due."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssmpi.config import CheckpointOptions


class CheckpointTimer:
    """Says when the next checkpoint is due."""

    def __init__(self, options: CheckpointOptions, examples: int) -> None:
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
