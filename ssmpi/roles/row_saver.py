"""Saves the rows of an embedding PS again and again, on a thread of its own, for partial recovery: nobody waits for it.

A save that fails is said and does not end the run. The next one then takes all rows, because what the failed one had
selected counts as saved; so does the first one after a kill in the middle of a save.
"""

from __future__ import annotations

import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from ssmpi.checkpoint.pending_save import NICENESS
from ssmpi.checkpoint.row_records import UNKNOWN
from ssmpi.checkpoint.row_store import RowStore
from ssmpi.comm.failure import cause
from ssmpi.core.clock import Clock
from ssmpi.core.errors import DataError
from ssmpi.core.log import log
from ssmpi.core.settings import SECONDS
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.trackers import Tracker
from ssmpi.recovery import policy
from ssmpi.recovery.defaults import HOUR, inputs_of

if TYPE_CHECKING:
    from ssmpi.comm.rank_memory import RankMemory
    from ssmpi.config import Config

NOTE = "row saves"  # in the memory of the rank
POLL_SECONDS = 1.0  # to hear of checkpoints
MOST_NEWS = 20  # that are told at once
LEAST_COST = 1e-6  # seconds: a policy has none for what costs nothing


class _EndedError(Exception):
    """The run is over: a save that is under way is of no use any more."""


class RowSaver:
    """Saves what ``tracker`` selects of the rows of ``server``, or without one all. ``earlier`` is what saving all rows
    took in earlier jobs, in seconds.
    """

    def __init__(
        self, config: Config, store: RowStore, tracker: Tracker | None, server: EmbeddingServer, memory: RankMemory,
        earlier: float = 0.0,
    ) -> None:  # fmt: skip
        self._config, self._store, self._tracker, self._server, self._memory = config, store, tracker, server, memory
        self._fraction = config.checkpoint.priority_fraction if tracker else 1.0
        begun = 0.0 if tracker else time.time()  # increments follow a base, the first save; else the seed is one
        note = memory.noted(NOTE) or {"at": begun, "seconds": earlier, "whole": True}
        self._at, self._seconds, self._whole = note["at"], note["seconds"], note["whole"]
        self._remember()
        self._opened = self._warned = False
        self._checkpointed = server.checkpointed
        self._done, self._thread_is_done = threading.Event(), threading.Event()
        self._news: list[dict[str, Any]] = []
        store.go_on = self._go_on

    def run(self) -> None:
        """Save when it is time, until ``stop``. The body of a thread."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            while not self._done.wait(min(max(self._seconds_left(), 0.0), POLL_SECONDS)):
                if self._seconds_left() <= 0:
                    self.save()
        finally:
            self._thread_is_done.set()

    def end(self) -> None:
        """No save begins any more."""
        self._done.set()

    def stop(self, seconds: float) -> None:
        """The run has ended in order, with a model or a checkpoint: what was saved here is of no use any more. A save
        under way ends within ``seconds``, if its disk does not hang.
        """
        self.end()
        if self._thread_is_done.wait(seconds):
            self._store.remove()

    def news(self) -> list[dict[str, Any]]:
        """What was saved since the last call, as ``metrics.jsonl`` has it, with what all rows take."""
        found, self._news = self._news[:MOST_NEWS], self._news[MOST_NEWS:]
        return found

    @property
    def interval(self) -> float:
        """Seconds from one save to the next: of those that CPR's policy wants between two saves of all rows, the
        fraction that is saved; ten times what one takes at least.
        """
        options = self._config.recovery
        given = {"total_seconds": SECONDS / HOUR, "row_save_wall_seconds": max(self._seconds, LEAST_COST)}
        given |= {"target_pls": options.target_pls}
        given |= {"mtbf_seconds": options.mtbf_hours} if options.mtbf_hours else {}
        return self._fraction * policy.partial(inputs_of(self._config.topology.embedding_ps, given)).interval

    def save(self) -> None:
        """Save once, and tell what it took."""
        clock, at, samples, cost = Clock(), time.time(), self._server.samples, time.thread_time()
        try:
            self._open()
            whole, self._whole = self._whole or not self._tracker, True
            self._remember()  # until it is written, what is selected is nowhere
            line = self._save_all(samples) if whole else self._save_some(samples)
        except _EndedError:
            return
        except (OSError, DataError) as error:
            self._at = at
            self._remember()
            text = f"rows could not be saved, training goes on; the next save takes all of them: {cause(error)}"
            log.warning(text)
            self._news.append({"error": text})
            return
        share = 1.0 if whole else self._fraction
        cost = max(time.thread_time() - cost, LEAST_COST) / share  # all that training loses to it: it waits for no disk
        self._at, self._whole, self._seconds = at, self._outdated, clock.wall / share
        self._remember()
        line |= {"write_seconds": clock.wall, "position": samples}
        line |= {"all_rows_seconds": self._seconds, "all_rows_cost": cost}
        self._news.append(line)
        log.info(
            f"rows saved: {line['rows']:,}, with {line['covered']:.1%} of what changed; {line['bytes']:,} bytes,"
            f" {clock.wall:.2f} s, after {samples:,} samples; the next in {self.interval:,.0f} s"
        )
        if not whole:
            self._judge(line["covered"])

    def _open(self) -> None:
        """Find what an earlier process has saved, if its increments are to go on."""
        if not (self._opened or self._whole):
            self._whole = True  # if it is damaged
            saved = self._store.load()
            self._whole = saved is None or saved.end < self._store.path.stat().st_size
        self._opened = True

    def _save_all(self, samples: int) -> dict[str, Any]:
        if self._tracker:
            self._tracker.forget()  # before rows are copied: what is updated meanwhile counts for the next save
        self._store.path.parent.mkdir(exist_ok=True)
        size = self._store.save_all(samples)
        return {"rows": len(self._server.arena.weights), "bytes": size, "covered": 1.0}

    def _save_some(self, samples: int) -> dict[str, Any]:
        assert self._tracker
        selection = self._tracker.select()
        left = UNKNOWN if math.isnan(selection.left) else int(selection.left)
        size = self._store.save(selection.rows, samples, left)
        if self._store.increments_outweigh_base and not self._outdated:
            size += self._store.compact()
        return {"rows": len(selection.rows), "bytes": size, "covered": selection.share}

    @property
    def _outdated(self) -> bool:
        """Whether it is time for a new base, of rows as they are: a checkpoint has newer ones than the base, and merged
        into that nobody could tell any more which increments are newer than the checkpoint.
        """
        store = self._store
        return bool(self._tracker) and store.increments_outweigh_base and store.base_samples < self._server.checkpointed

    def _seconds_left(self) -> float:
        """Until the next save; nothing is dated before the first trainer has told how many samples there are, and none
        begins while that says that full recovery costs less.
        """
        if self._server.checkpointed != self._checkpointed and not self._tracker:
            self._checkpointed, self._at = self._server.checkpointed, time.time()
        return (
            POLL_SECONDS
            if self._server.samples < 0 or not self._server.saves_rows
            else self._at + self.interval - time.time()
        )

    def _remember(self) -> None:
        self._memory.note(NOTE, {"at": self._at, "seconds": self._seconds, "whole": self._whole})

    def _go_on(self) -> None:
        if self._done.is_set():
            raise _EndedError

    def _judge(self, share: float) -> None:
        """Warn once where priority does not pay: of few rows, less than twice what as many at random would cover."""
        fraction = self._fraction
        if share < fraction * (2 - fraction) and not self._warned:
            self._warned = True
            log.warning(
                f"the {fraction:.1%} of the rows that a priority save takes have {share:.1%} of what changes: rows are"
                " used nearly alike, and saving all of them loses less; set checkpoint.priority = 'none'"
            )
