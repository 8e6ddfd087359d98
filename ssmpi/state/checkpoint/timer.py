"""When the next checkpoint is due."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ssmpi.runtime.mpi.rank_memory import Note

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.rank_memory import RankMemory
    from ssmpi.runtime.run_options import CheckpointOptions


class CheckpointTimer:
    """Says when the next checkpoint is due. Its clock survives a kill and counts from the last committed checkpoint: a
    job that is killed often must still save. Both it and the memory end with the host's boot.
    """

    def __init__(self, options: CheckpointOptions, examples: int, memory: RankMemory) -> None:
        self._options, self._memory = options, memory
        self.saved(examples)
        if kept := memory.noted(Note.SAVED):
            self._examples, self._at = kept
        else:
            self.committed()

    def saved(self, examples: int) -> None:
        """A checkpoint was started after this many examples, or failed: either way the interval to the next one starts
        now.
        """
        self._examples, self._at = examples, time.monotonic()

    def committed(self) -> None:
        """The checkpoint that was started last is committed."""
        self._memory.note(Note.SAVED, (self._examples, self._at))

    def now(self, examples: int) -> bool:
        """Whether one is due after this many examples."""
        options = self._options
        late = bool(options.every_minutes) and time.monotonic() - self._at >= 60 * options.every_minutes
        return late or (bool(options.every_examples) and examples - self._examples >= options.every_examples)
