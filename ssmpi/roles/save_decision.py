"""The first trainer's side of row saves: it logs them, and decides whether they continue."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from ssmpi.comm.rank_memory import ProcessMemory
from ssmpi.files.log import log
from ssmpi.recovery.after_loss import FULL, PARTIAL, summary
from ssmpi.roles.policy_inputs import DECIDED, PolicyInputs

if TYPE_CHECKING:
    from ssmpi.comm.rank_memory import RankMemory
    from ssmpi.config import Config
    from ssmpi.embedding.local_tables import LocalTables
    from ssmpi.embedding.transport import RemoteTables
    from ssmpi.recovery.inputs import KnownInputs
    from ssmpi.recovery.policy import Decision
    from ssmpi.report.results import RunResults

DECISION_SECONDS = 10.0  # from one decision to the next
COSTS = "save_seconds", "row_save_seconds", "row_save_wall_seconds"  # inputs of the policy


class RowSaves:
    """Rows are saved for partial recovery: with ``recovery.mode = "auto"`` only while the policy wants that, by the
    run's measurements so far. If ``memory`` ends with its rank nothing is saved or decided. Trainers without
    ``results`` do nothing. The first one must answer requests for blocks meanwhile, so this accesses no disk: a
    background thread of the ``results`` does.
    """

    def __init__(
        self, config: Config, transport: LocalTables | RemoteTables, results: RunResults | None, memory: RankMemory
    ) -> None:
        self._transport, self._results = transport, results
        kept = config.topology.embedding_ps > 0 and not isinstance(memory, ProcessMemory)
        self._inputs = PolicyInputs(config) if results and kept and config.recovery.mode == "auto" else None
        self._memory, self._mode, self._decided = memory, memory.noted(DECIDED), -math.inf
        self._origins: list[str] = []

    def exchange(self, examples: int) -> None:
        """Tell the embedding PSs the number of samples and whether to save; log what they have saved."""
        if not self._results:
            return
        if self._inputs and time.monotonic() - self._decided >= DECISION_SECONDS:
            self._decide(*self._inputs.compare(self._results.logbook.numbers(), self._mode))
        if lines := self._transport.exchange_status(examples, self._mode != FULL):
            self._results.rows_saved(lines, self._inputs.refresh if self._inputs else None)

    def _decide(self, known: KnownInputs, found: Decision) -> None:
        """Log the decision if it has changed, and the first time that it is based on measured costs."""
        origins = [known.origins[name] for name in COSTS]
        if found.mode != self._mode:
            self._memory.note(DECIDED, found.mode)
        before, self._mode, self._decided = self._mode or PARTIAL, found.mode, time.monotonic()
        seen, self._origins = self._origins or origins, origins
        if found.mode != before or origins != seen:
            what = "save rows" if found.mode == PARTIAL else "save no rows"
            now = " from now on" * (found.mode != before)
            log.info(f"the embedding PSs {what} beside checkpoints{now}: {summary(found)} ({known.describe()})")
