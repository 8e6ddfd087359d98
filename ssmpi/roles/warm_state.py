"""The trainers' state that survived a kill in memory, merged; and the first trainer's note in its memory."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ssmpi.checkpoint.trainer_state import SELECTION
from ssmpi.comm.waiting import WaitOptions, wait
from ssmpi.core.quality import Quality
from ssmpi.data.trained_rows import Deal, TrainedRows, done_by, latest, rows_in_hand
from ssmpi.recovery.after_loss import PARTIAL
from ssmpi.recovery.ledger import LEDGER, OUTCOME
from ssmpi.report import recoveries
from ssmpi.roles.progress import Progress
from ssmpi.roles.replica_recovery import restore_lost
from ssmpi.sync.warmup import OVER

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from ssmpi.checkpoint.start import Repair
    from ssmpi.comm.messages import Conversation
    from ssmpi.comm.rank_memory import RankMemory
    from ssmpi.comm.world import World
    from ssmpi.config import Config
    from ssmpi.core.topology import Topology
    from ssmpi.model.operators import Parameter
    from ssmpi.report.results import RunResults
    from ssmpi.report.trainer_report import TrainerReport
    from ssmpi.roles.model_selection import ModelSelection
    from ssmpi.sync import Synchronizer

LOST_ON_THE_WAY = "pushes_lost", "center_pushes_lost", "batches_repeated"  # to embedding PSs, to sync PSs, by threads
RUN, NOTE_SECONDS = "run so far", 1.0  # the name of the first trainer's note, and its greatest age
FORGOTTEN = "forgotten"  # the name of every trainer's note: the recovery whose outcome includes its losses


class TrainerMemory(NamedTuple):
    """One trainer's surviving state: its last deal, its note, what it has scored, batches done; on the dealer also the
    assignments. Empty if its memory is lost.
    """

    deal: tuple[Deal, np.ndarray] | None
    run: dict[str, Any]
    quality: Quality
    batches: int
    warmed_up: bool
    handed: np.ndarray | None = None


NOTHING = TrainerMemory(None, {}, Quality(), -1, True)


@dataclass(frozen=True)
class WarmState:
    """The same on all trainers. ``state`` is the first trainer's note, with ``examples``; ``left`` the rest of the
    latest deal; ``quality`` what each trainer has scored. Replicated state is copied from the trainer ``furthest``
    ahead; ``repair`` names the ranks whose memory is lost.
    """

    state: dict[str, Any]
    left: Deal
    quality: Sequence[Quality]
    furthest: int
    warming_up: bool
    repair: Repair | None = None

    @classmethod
    def gather(cls, config: Config, world: World, memory: RankMemory, repair: Repair | None = None) -> WarmState:
        """Gather the state of all trainers, without changing memory. Every trainer calls it."""
        lost = repair.trainers if repair else frozenset()
        found = world.trainers.gather(NOTHING if world.index in lost else own_memory(config, world.index, memory))
        run, batches, again = found[0].run, [each.batches for each in found], (0, 0)
        if lost and found[0].deal and found[0].handed is not None:
            dealt, handed = found[0].deal[0], found[0].handed
            again = dealt.number, sum(rows_in_hand(trainer, dealt, handed) for trainer in lost)
            before, rows = run["dealt_again"]
            again = again[0], again[1] + rows * (before < dealt.number)
        deal = deal_left(found, lost)
        if deal.position.done and run["evaluated"] >= deal.position.part:
            deal = deal._replace(position=deal.position.next(config.evaluate.per_pass))
        iterations = max(sum(max(each, 0) for each in batches), run["logbook"]["iterations"] if lost else 0)
        logbook = {**run["logbook"], "examples": deal.examples, "iterations": iterations}
        return cls(
            state={**run, "examples": deal.examples, "logbook": logbook, "dealt_again": again},
            left=deal,
            quality=[each.quality for each in found],
            furthest=0 if lost else batches.index(max(batches)),  # the first trainer's group is sure to have its leader
            warming_up=not all(each.warmed_up for each in found),
            repair=repair,
        )

    def deal(self, topology: Topology, batch_size: int) -> Deal:
        """The deal to resume from; the numbers of trainers and threads have not changed."""
        return self.left

    def scored(self) -> Sequence[Quality]:
        """The quality that each trainer has scored."""
        return self.quality

    def make_equal(
        self, synchronizer: Synchronizer, world: World, waiting: WaitOptions, layout: Sequence[Parameter]
    ) -> None:
        """Copy replicated state to all trainers from the one furthest ahead, which may have been killed a step after
        the others. An unfinished warm-up ends here. ``layout`` is that of the dense parameters.
        """
        arrays = synchronizer.common()
        if self.warming_up:
            arrays = [synchronizer.weights, *synchronizer.context.local.optimizer.state().values()]
        given = [values.copy() if world.index == self.furthest else np.zeros_like(values) for values in arrays]
        for values in given:
            wait(world.trainers.iallreduce(values), waiting, "the other trainers (to resume after a kill)")
        for values, from_furthest in zip(arrays, given, strict=True):
            values[:] = from_furthest
        if self.warming_up:
            synchronizer.restart()
            synchronizer.context.local.memory.note(OVER, True)
        if self.repair:
            restore_lost(self.repair, synchronizer, world, waiting, layout)


def deal_left(found: Sequence[TrainerMemory], lost: Set[int]) -> Deal:
    """What is left of the latest deal, and after how many examples of all trainers. Of ``lost`` trainers, whose
    memory is empty, the examples count that the first one knows they have trained on.
    """
    deals = [each.deal for each in found]
    if lost and found[0].deal and found[0].handed is not None:
        dealt, handed = found[0].deal[0], found[0].handed
        deals += [(dealt, done_by(trainer, dealt, handed)) for trainer in lost]
    deal = latest(deals)
    assert deal, "whole memory has this note"
    return deal


def own_memory(config: Config, trainer: int, memory: RankMemory) -> TrainerMemory:
    """The surviving state of this trainer, by number."""
    threads, first = config.topology.threads, trainer == 0
    trained = TrainedRows(memory, threads, 0, dealer=first)
    progress = Progress(threads, config.topology.trainers, config.schedule, memory=memory)
    deal = trained.kept()
    return TrainerMemory(
        deal,
        memory.noted(RUN),
        progress.quality(),
        int(trained.batches.sum()),
        bool(memory.noted(OVER)),
        trained.handed.kept(deal[0]) if trained.handed and deal else None,
    )


class Lost(Protocol):
    """A count, in memory that outlives a kill, of something that a kill may lose."""

    @property
    def lost(self) -> int:
        """How many are not reported yet."""

    def reported(self) -> None:
        """Mark them as reported."""


class RunNote:
    """The first trainer's note in its memory, at most a second old: state that no other trainer has and that is neither
    in ``Progress`` nor in ``TrainedRows``. Other trainers, without ``results``, write none.
    """

    def __init__(
        self, memory: RankMemory, results: RunResults | None, selection: ModelSelection, checked: Set[int],
        saved: object,
    ) -> None:  # fmt: skip
        self._memory, self._results, self._selection, self._checked = memory, results, selection, checked
        kept = saved if isinstance(saved, WarmState) else None
        self._again: tuple[int, int] = kept.state["dealt_again"] if kept else (0, 0)
        self._written, self._evaluated = 0.0, kept.state["evaluated"] if kept else -1
        self._logged = kept.state["logged"] if kept else len(recoveries.resumed(results.folder)) if results else 0
        self._write()

    def gathered(self, trainer: int, report: TrainerReport) -> None:
        """Handle one trainer's report, on the first trainer."""
        assert self._results
        self._results.logbook.gathered(trainer, report)
        if time.monotonic() - self._written >= NOTE_SECONDS:
            self._write()

    def started(self, examples: int, lost: Sequence[Lost], trainers: Conversation) -> None:
        """All ranks are ready, and training starts after ``examples`` of all trainers: from now on it can resume from
        this memory. If this start is itself a recovery, complete its record, with what this trainer has ``lost`` in
        flight, in the order of ``LOST_ON_THE_WAY``. All ``trainers`` call it.
        """
        results, outcome = self._results, {}
        before = (self._memory.noted(LEDGER) or {}).get(OUTCOME) if results else None
        (noted, *_) = trainers.gather(before and before.get("at"))
        if noted and self._memory.noted(FORGOTTEN) != noted:  # a kill came between the two notes
            self._forget(lost, noted)
        by_trainer = trainers.gather([each.lost for each in lost])
        if results:  # the first trainer's memory is complete only with it
            found: dict[str, float] = {"examples": examples}
            found |= dict(zip(LOST_ON_THE_WAY, map(sum, zip(*by_trainer, strict=True)), strict=True))
            found |= {**results.recovery_fields, "pls": results.pls}
            outcome = recoveries.outcome(results.folder, found)
            self._memory.note(LEDGER, {**results.ledger, OUTCOME: outcome})  # reported by the next start if killed now
        (noted, *_) = trainers.gather(outcome.get("at"))  # no trainer forgets its losses before they are noted
        self._forget(lost, noted)
        self._memory.ready()
        if results and outcome:
            recoveries.complete(results.folder, outcome)
            self._log_recoveries(results)

    def _log_recoveries(self, results: RunResults) -> None:
        """Log each recovery that has no line yet: the last start may have been killed before it wrote its own."""
        found = recoveries.resumed(results.folder)
        for recovery in found[self._logged :]:
            results.logbook.recovered(recovery)
            if recovery["how"] == PARTIAL:
                results.logbook.say(recoveries.describe(recovery))
        self._logged, self._again = len(found), (0, 0)
        self._write()  # otherwise a kill within a second would undo these lines

    def _forget(self, lost: Sequence[Lost], noted: str | None) -> None:
        """Forget the losses: the outcome of the recovery that began at ``noted`` includes them."""
        for each in lost:
            each.reported()
        self._memory.note(FORGOTTEN, noted)

    def evaluated(self, part: int) -> None:
        """A part of the run and its evaluation are done: write the note at once."""
        self._evaluated = part
        self._write()

    def _write(self) -> None:
        if not self._results:
            return
        self._written = time.monotonic()
        self._memory.note(RUN, {
            "logbook": self._results.logbook.numbers(),
            "evaluations": self._results.evaluations,
            SELECTION: asdict(self._selection.state),
            "checked": sorted(self._checked),
            "evaluated": self._evaluated,
            "dealt_again": self._again,
            "logged": self._logged,
        })  # fmt: skip
