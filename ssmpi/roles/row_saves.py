"""Saves of rows beside training, as the first trainer sees them: it hears of them, and says whether they go on."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from ssmpi.comm.rank_memory import ProcessMemory
from ssmpi.core.log import log
from ssmpi.recovery.choice import PARTIAL, in_short
from ssmpi.recovery.policy import decide
from ssmpi.roles import policy_inputs

if TYPE_CHECKING:
    from ssmpi.comm.rank_memory import RankMemory
    from ssmpi.config import Config
    from ssmpi.embedding.transport import LocalTables, RemoteTables
    from ssmpi.report.results import Results

DECISION_SECONDS = 10.0  # from one decision to the next
COSTS = "save_seconds", "row_save_seconds"  # inputs of the policy


class RowSaves:
    """Rows are saved for partial recovery: with ``recovery.mode = "auto"`` only while the policy wants that, by what
    the run has measured so far. Where ``memory`` ends with its rank nothing is saved, and nothing decided. The trainers
    without ``results`` do nothing.
    """

    def __init__(
        self, config: Config, transport: LocalTables | RemoteTables, results: Results | None, memory: RankMemory
    ) -> None:
        self._config, self._transport, self._results = config, transport, results
        kept = config.topology.embedding_ps > 0 and not isinstance(memory, ProcessMemory)
        self._decides = config.recovery.mode == "auto" and kept
        self._wanted, self._decided = True, -math.inf
        self._origins: list[str] = []

    def exchange(self, examples: int) -> None:
        """Tell the embedding PSs how far the run is and whether they are to save; write what they have saved."""
        if not self._results:
            return
        if self._decides and time.monotonic() - self._decided >= DECISION_SECONDS:
            self._decide(self._results)
        self._results.rows_saved(self._transport.exchange_news(examples, self._wanted))

    def _decide(self, results: Results) -> None:
        """Say so where that has changed, and when it is the first time by what saves are seen to cost."""
        known = policy_inputs.by_numbers(self._config, results.logbook.numbers())
        found, origins = decide(known.inputs), [known.origins[name] for name in COSTS]
        before, self._wanted, self._decided = self._wanted, found.mode == PARTIAL, time.monotonic()
        seen, self._origins = self._origins or origins, origins
        if self._wanted != before or origins != seen:
            what = "save rows by themselves" if self._wanted else "rest from saving rows by themselves"
            log.info(
                f"the embedding PSs {what}{' from now on' * (self._wanted != before)}, recovery is {found.mode}:"
                f" {in_short(found)} ({known.describe()})"
            )
