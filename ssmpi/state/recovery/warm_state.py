"""The trainers' state that survived a kill in memory, merged; what is lost of it, restored: a replica from the common
model, a center from the replicas; and the notes that the first trainer leaves in its memory for the next start.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ssmpi.data.trained_rows import Deal, TrainedRows, done_by, latest, rows_in_flight
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.mpi.waiting import WaitOptions, wait
from ssmpi.runtime.quality import Quality, counters
from ssmpi.state.checkpoint import files, store
from ssmpi.state.checkpoint.trainer_state import Checkpoint
from ssmpi.state.recovery.decision import PARTIAL
from ssmpi.state.recovery.ledger import Booking, Ledger
from ssmpi.state.recovery.run_record import RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set

    from ssmpi.config import Config
    from ssmpi.model.parameters import OwnedParameters
    from ssmpi.runtime.mpi.rank_memory import RankMemory
    from ssmpi.runtime.mpi.world import World
    from ssmpi.runtime.topology import Topology
    from ssmpi.state.checkpoint.trainer_state import RunLog
    from ssmpi.state.recovery.start import Repair
    from ssmpi.sync import Synchronizer

NOTE_SECONDS = 1.0  # the greatest age of the first trainer's note


class TrainerMemory(NamedTuple):
    """One trainer's surviving state: its last deal, its note, what it has scored, batches done; on the dealer also the
    assignments. Empty if its memory is lost.
    """

    deal: tuple[Deal, np.ndarray] | None
    run: dict[str, Any]
    quality: Quality
    batches: int
    handed: np.ndarray | None = None


NOTHING = TrainerMemory(None, {}, Quality(), -1)


@dataclass(frozen=True)
class WarmState:
    """The same on all trainers. ``state`` is the first trainer's note, with ``examples``; ``left`` the rest of the
    latest deal; ``quality`` what each trainer has scored. Replicated state of each member is copied from the replica
    where its trainer is ``furthest`` ahead; ``repair`` names the ranks whose memory is lost.
    """

    state: dict[str, Any]
    left: Deal
    quality: Sequence[Quality]
    furthest: Sequence[int]
    repair: Repair | None = None

    @classmethod
    def gather(cls, config: Config, world: World, memory: RankMemory, repair: Repair | None = None) -> WarmState:
        """Gather the state of all trainers, without changing memory. Every trainer calls it."""
        lost = repair.trainers if repair else frozenset()
        found = world.trainers.gather(NOTHING if world.index in lost else own_memory(config, world.index, memory))
        run, batches, again = found[0].run, [each.batches for each in found], (0, 0)
        if lost and found[0].deal and found[0].handed is not None:
            dealt, handed = found[0].deal[0], found[0].handed
            again = dealt.number, sum(rows_in_flight(trainer, dealt, handed) for trainer in lost)
            before, rows = run["reassigned"]
            again = again[0], again[1] + rows * (before < dealt.number)
        deal = deal_left(found, lost)
        if deal.position.done and run["evaluated"] >= deal.position.part:
            deal = deal._replace(position=deal.position.next(config.evaluate.per_pass))
        iterations = max(sum(max(each, 0) for each in batches), run["logbook"]["iterations"] if lost else 0)
        logbook = {**run["logbook"], "examples": deal.examples, "iterations": iterations}
        return cls(
            state={**run, "examples": deal.examples, "logbook": logbook, "reassigned": again},
            left=deal,
            quality=[each.quality for each in found],
            furthest=furthest(world.topology, batches, lost),
            repair=repair,
        )

    def deal(self, topology: Topology, batch_size: int) -> Deal:
        """The deal to resume from; the numbers of trainers and threads have not changed."""
        return self.left

    def scored(self) -> Sequence[Quality]:
        """The quality that each trainer has scored."""
        return self.quality

    def make_equal(
        self, synchronizer: Synchronizer, world: World, waiting: WaitOptions, owned: OwnedParameters
    ) -> None:
        """Copy replicated state to all replicas from that of the trainer furthest ahead, which may have been killed a
        step after the others. ``owned`` are this trainer's dense parameters.
        """
        arrays = synchronizer.common()
        giver = self._giver(synchronizer, world) if arrays else None
        gives = world.replicas.rank == giver
        given = [values.copy() if gives else np.zeros_like(values) for values in arrays]
        for values in given:
            wait(world.replicas.iallreduce(values), waiting, "the other trainers (to resume after a kill)")
        for values, from_furthest in zip(arrays, given if giver is not None else arrays, strict=True):
            values[:] = from_furthest
        if self.repair:
            mean = restore_lost(self.repair, synchronizer, world, waiting, owned)
            if arrays and giver is None:
                restart_from(mean, synchronizer)

    def _giver(self, synchronizer: Synchronizer, world: World) -> int | None:
        """The replica from whose memory this member's replicated state is copied; None if none has it any more: its
        team's leader, which kept it for all of the team, is lost.
        """
        first = self.furthest[world.topology.place_of(world.index).member]
        if not self.repair:
            return first
        _, owner = world.replicas.directory.members[synchronizer.exchange.owner_of_state]
        has = world.replicas.gather(owner not in self.repair.trainers)
        return next((replica for replica in (first, *range(len(has))) if has[replica]), None)


Saved = Checkpoint | WarmState  # what a trainer resumes from


def furthest(topology: Topology, batches: Sequence[int], lost: Set[int]) -> list[int]:
    """By member, the replica whose trainer has done most ``batches``; where trainers are ``lost``, the first one left:
    the first trainer's team is sure to have its leader.
    """
    found = []
    for member in range(topology.group):
        twins = range(member, topology.trainers, topology.group)
        living = [trainer for trainer in twins if trainer not in lost] or twins
        best = living[0] if lost else max(living, key=lambda trainer: batches[trainer])
        found.append(topology.place_of(best).replica)
    return found


def restart_from(mean: np.ndarray, synchronizer: Synchronizer) -> None:
    """Let what an algorithm keeps of all replicas start from their ``mean``, float32 (parameters,)."""
    weights, own = synchronizer.weights, synchronizer.weights.copy()
    weights[:] = mean
    synchronizer.restart()
    weights[:] = own
    log.warning("what all replicas had in common is lost with the trainer that kept it: it restarts from their mean")


def restore_lost(
    repair: Repair, synchronizer: Synchronizer, world: World, waiting: WaitOptions, owned: OwnedParameters
) -> np.ndarray:
    """Every trainer calls it, once replicated state is equal on all of them. Returns the mean of the surviving
    replicas.

    The shards of lost sync PSs start from that mean, with the optimizer state of the checkpoint. A lost trainer gets
    the center, or the mean if there is no center, and the mean of the other replicas' optimizer states; where no other
    replica survives, the optimizer starts anew.
    """
    lost = world.index in repair.trainers
    living = sum(index not in repair.trainers for _, index in world.replicas.directory.members)
    arrays = [synchronizer.weights, *synchronizer.context.local.optimizer.state().values()]
    means = [np.zeros_like(values) if lost else values / np.float32(living) for values in arrays]
    for mean in means:
        wait(world.replicas.iallreduce(mean), waiting, "the other trainers (to restore lost state)")
    if repair.sync_ps:
        saved = algorithm_state(repair, synchronizer, owned) if world.replicas.rank == 0 else {}
        synchronizer.exchange.restore_center(repair.sync_ps, means[0], saved)
    if lost:
        for values, mean in zip(arrays, means, strict=True):
            values[:] = mean if living else values
        synchronizer.exchange.adopt_model()
    return means[0]


def algorithm_state(repair: Repair, synchronizer: Synchronizer, owned: OwnedParameters) -> Mapping[str, np.ndarray]:
    """The algorithm's state in the newest checkpoint; empty if there is none, or if it is damaged."""
    if not repair.checkpoint or not synchronizer.state():
        return {}
    try:
        checkpoint = Checkpoint.at(repair.checkpoint)
        first = {f"trainer-{member:04}.h5" for member in range(checkpoint.topology.group)}
        for entry in store.read_manifest(repair.checkpoint).files:
            if entry.file in first:
                files.verify(repair.checkpoint, entry)
        same = checkpoint.state["algorithm"] == synchronizer.options.identity
        return checkpoint.arrays(0, owned).below("sync/") if same else {}
    except DataError as error:
        log.warning(f"the optimizer state of lost sync PSs is reset: {error}")
        return {}


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
    deal, noted = trained.kept(), memory.noted
    return TrainerMemory(
        deal,
        dict(noted.get("run_so_far", {})),
        Quality.of(*counters(memory.array, threads)),
        int(trained.batches.sum()),
        trained.handed.kept(deal[0]) if trained.handed and deal else None,
    )


def cost_of(record: Mapping[str, Any]) -> str:
    """The cost of a partial recovery, in a sentence."""
    parts = [
        f"{record['rows_reloaded']:,} embedding rows reloaded ("
        + ", ".join(f"{who} from {source}" for who, source in record["sources"].items())
        + f"), which miss {record['samples_lost']:,} samples"
        + ("" if record.get("updates_lost") is None else f" and {record['updates_lost']:,} updates")
    ] * bool(record["rows_reloaded"])
    if record["rows_dealt_again"]:
        parts.append(f"up to {record['rows_dealt_again']:,} rows of the data are trained on again")
    if record["accounts_lost"]:
        parts.append(f"gradients of {record['accounts_lost']} threads that were not pushed are lost")
    cost = "; ".join(parts) or "nothing but what follows from the ranks that live"
    return f"going on after {record['examples']:,} examples: {cost}. PLS is {record['pls']:.3g} so far"


class RecoveryNotes:
    """What a trainer notes in its ``memory``, for the next start if this one is killed: the ``booking`` of losses and,
    on the first trainer, at least once a second, what no other trainer has and what is neither in ``Progress`` nor in
    ``TrainedRows``: ``run_so_far`` returns it. Only the first one has a ``log``; the note says which recoveries that
    has lines of.
    """

    def __init__(
        self, run: Path, memory: RankMemory, booking: Booking, log: RunLog | None,
        run_so_far: Callable[[], Mapping[str, Any]], saved: Saved | None,
    ) -> None:  # fmt: skip
        self.run, self.memory, self.booking = run, memory, booking
        self._log, self._run_so_far = log, run_so_far
        kept = saved if isinstance(saved, WarmState) else None
        self._again: tuple[int, int] = kept.state["reassigned"] if kept else (0, 0)
        self._written, self._evaluated = 0.0, kept.state["evaluated"] if kept else -1
        self._logged = kept.state["logged"] if kept else len(RunRecord.read(run).resumed()) if log else 0
        self.write()

    def write_if_due(self) -> None:
        """Write the note if the last one is too old."""
        if time.monotonic() - self._written >= NOTE_SECONDS:
            self.write()

    def evaluated(self, part: int) -> None:
        """A part of the run and its evaluation are done: write the note at once."""
        self._evaluated = part
        self.write()

    def book(self, outcome: Mapping[str, Any]) -> None:
        """Note the ledger and, for the next start if this one is killed now, the outcome, together."""
        self.memory.note(ledger=self.booking.ledger.state(), outcome=outcome)

    def log_recoveries(self) -> None:
        """Log each recovery that has no line yet: the last start may have been killed before it wrote its own."""
        assert self._log
        found = RunRecord.read(self.run).resumed()
        for recovery in found[self._logged :]:
            self._log.recovered(recovery)
            if recovery["how"] == PARTIAL:
                self._log.say(cost_of(recovery))
        self._logged, self._again = len(found), (0, 0)
        self.write()  # otherwise a kill within a second would undo these lines

    def write(self) -> None:
        """Write the note now."""
        if not self._log:
            return
        self._written = time.monotonic()
        own = {"evaluated": self._evaluated, "reassigned": self._again, "logged": self._logged}
        self.memory.note(run_so_far={**self._run_so_far(), **own})


def noted_ledger(memory: RankMemory | None) -> tuple[Ledger | None, Mapping[str, Any]]:
    """The ledger that the first trainer has noted in its memory, if any, and the outcome that was noted with it."""
    if not memory or "ledger" not in (noted := memory.noted):
        return None, {}
    return Ledger.of_state(noted["ledger"]), noted.get("outcome", {})
