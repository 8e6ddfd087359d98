"""How a job resumes after ranks were killed, from top to bottom. With MPI, ranks die together: ``ssmpi launch`` starts
the job again (``cluster/restarts``), and then

1. ``begin``: every rank inspects its memory, and the first one decides (``decision``): warm recovery, from memory
   alone; partial recovery, which makes lost memory anew and loads the rows of lost embedding PSs (``lost_servers``); or
   full recovery, from a checkpoint or the beginning, as in a job that nothing survived;
2. roles start: trainers merge what they have kept (``warm_state``), and lost replicas and centers are restored
   (``warm_state``);
3. ``resumed``: all ranks are ready, the loss is booked, and from then on the new memory is valid.

A kill in between makes the next start begin at 1 with the same memory, and nothing is booked twice.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ssmpi import config
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import last_end, log
from ssmpi.runtime.files.run_files import RESULT_NAME, RUN_FILE
from ssmpi.runtime.host.clock import process_age
from ssmpi.runtime.mpi.rank_memory import MemoryFile, ProcessMemory, RankMemory
from ssmpi.state.checkpoint import disk, model_files, store
from ssmpi.state.recovery import lost_servers, run_record
from ssmpi.state.recovery.decision import FROM_BEGINNING, FULL, MEMORY, PARTIAL, Choice, Found, choose
from ssmpi.state.recovery.ledger import Ledger
from ssmpi.state.recovery.run_record import RunRecord
from ssmpi.state.recovery.start import MemoryPlace, Start, refuse_left, remove_everywhere
from ssmpi.state.recovery.warm_state import noted_ledger

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation
    from ssmpi.runtime.mpi.world import Job
    from ssmpi.state.recovery.start import ResumePlan, Supervised
    from ssmpi.state.recovery.warm_state import RecoveryNotes

NOTHING: Mapping[str, Any] = MappingProxyType({})
LOST_ON_THE_WAY = "pushes_lost", "center_pushes_lost", "batches_repeated"  # to embedding PSs, to sync PSs, by threads
FREE = re.compile(
    r"(recovery\.(max_restarts|within_minutes|target_pls|mtbf_hours)"
    r"|checkpoint\.(every_\w+|keep|limit_seconds|stop_budget_seconds)|waiting\.\w+|run\.log_seconds) was "
)  # settings that may differ between a launch and the one whose memory it resumes from


def begin(job: Job, plan: ResumePlan, supervised: Supervised | None) -> Start:
    """The state that this rank starts from; the first rank decides for all. Every rank calls it."""
    if supervised is None or plan.config.recovery.mode == "off":
        return begin_without_launcher(job, plan)
    run, resumes, lost = plan.config.run.path, plan.again, ""
    launch, number = supervised.launch, supervised.start
    if plan.ahead:
        memory, found = inspect(job, plan, launch)
        resumes = plan.again or any(not each.why for each in found)
        if resumes and not plan.again:
            job.agree(lambda: check_settings(plan.config))
        elif not resumes and job.rank == 0:
            log.warning(f"the memory that launch {launch} left cannot be used ({found[0].why})")
        if resumes:
            job.agree(lambda: run_record.begin_start(run, launch, number))
            start, lost = from_memory(job, plan, supervised, memory, found)
            if start:
                return start
        del memory  # which is replaced
    checkpoint = choose_checkpoint(job, plan, launch, number)
    if resumes:
        how = checkpoint.name if checkpoint else FROM_BEGINNING
        job.agree(lambda: record(run, supervised, how, lost))
    elif plan.previous != launch:
        remove_everywhere(job, plan.config, plan.previous)
    return without_memory(job, plan, fresh(job, plan, supervised), checkpoint, number)


def begin_without_launcher(job: Job, plan: ResumePlan) -> Start:
    """The start of a job that no launcher restarts: it leaves no memory, and resumes from none."""
    run = plan.config.run.path
    if plan.ahead:
        memory, _ = MemoryPlace.of(plan.config, job.rank, plan.previous).inspect()
        if any(job.gather(memory is not None)):
            job.agree(lambda: refuse_left(run, "a start without 'ssmpi launch', or with recovery.mode = 'off'"))
    if job.agree(lambda: RunRecord.read(run).launch):  # this job does not go on from that launch's memory
        job.agree(lambda: run_record.begin_start(run, "", 0))
        remove_everywhere(job, plan.config, plan.previous)
    return without_memory(job, plan, ProcessMemory(), choose_checkpoint(job, plan), 0)


def inspect(job: Job, plan: ResumePlan, launch: str) -> tuple[MemoryFile | None, list[Found]]:
    """The memory of a launch that this rank may resume from, and what every rank has found of its own."""
    memory, why = MemoryPlace.of(plan.config, job.rank, launch).inspect()
    first = job.agree(lambda: RunRecord.read(plan.config.run.path).first_start)
    if memory and memory.origin.start < first:
        why = f"what is there is that of start {memory.origin.start}, and start {first} began without memory"
        memory = None
    return memory, job.gather(Found(why, memory.origin.start if memory else 0))


def check_settings(now: config.Config) -> None:
    """On the first rank: check that a new launch can resume from the memory of the one before, and save its
    settings.
    """
    run = now.run.path
    other = config.differences(config.load(run / RUN_FILE), now)
    if fixed := [each for each in other if not FREE.match(each)]:
        refuse_left(run, f"other settings ({'; '.join(fixed)})")
    if other:
        config.save(run, now)


def from_memory(
    job: Job, plan: ResumePlan, supervised: Supervised, memory: MemoryFile | None, found: list[Found]
) -> tuple[Start | None, str]:
    """Warm or partial recovery; None on all ranks, and why, if they must go back to a checkpoint."""
    run = plan.config.run.path
    choice, ledger, timeline = job.agree(lambda: decide(plan, run, memory, found))
    if choice.how == FULL:
        return None, choice.why
    if choice.how == MEMORY:
        job.agree(lambda: record(run, supervised, MEMORY))
        assert memory
        return Start(memory=memory, ledger=ledger, timeline=timeline), ""
    mine = memory if memory and job.rank not in choice.lost else fresh(job, plan, supervised)
    start = Start(memory=mine, ledger=ledger, timeline=timeline)
    made = lost_servers.rebuild_lost_memory(job, plan, start, choice.lost, supervised.start)
    if isinstance(made, str):
        return None, f"{choice.why}, and {made}"
    job.agree(lambda: record(run, supervised, PARTIAL, choice.why, lost_servers.record_fields(made)))
    return made, ""


def decide(
    plan: ResumePlan, run: Path, memory: MemoryFile | None, found: list[Found]
) -> tuple[Choice, Ledger | None, int]:
    """On the first rank: how the run recovers, its noted ledger, and its timeline."""
    ledger, outcome = noted_ledger(memory)
    if outcome:  # the last start may have been killed before it wrote it
        run_record.complete(run, outcome)
    record = RunRecord.read(run)
    choice = choose(found, ledger.starts if ledger else (), plan.config.topology, plan.config.recovery)
    if choice.how != FULL and not plan.again:
        run_record.count_start(run, max((each.get("examples", 0) for each in record.recoveries), default=0))
    return choice, ledger, record.timeline


def fresh(job: Job, plan: ResumePlan, supervised: Supervised) -> RankMemory:
    """New memory for this rank."""
    place = MemoryPlace.of(plan.config, job.rank, supervised.launch)
    return place.fresh(plan.config.run.path, supervised.start)


def without_memory(job: Job, plan: ResumePlan, memory: RankMemory, checkpoint: Path | None, number: int) -> Start:
    """Start ``number`` from a checkpoint, or the beginning: it creates all ``memory`` anew."""
    topology, run = plan.config.topology, plan.config.run.path
    timeline = job.agree(lambda: run_record.begin_timeline(run, number))
    saved = store.read_manifest(checkpoint).state if checkpoint and job.rank == 0 else {}
    starts, servers = [number] * topology.size, topology.embedding_ps
    ledger = Ledger.begin(starts, servers, saved.get("ledger"), saved.get("examples", 0))
    parent = plan.parent.folder if plan.parent and not checkpoint else None
    return Start(checkpoint, memory, ledger=ledger, timeline=timeline, parent=parent)


def choose_checkpoint(job: Job, plan: ResumePlan, launch: str = "", number: int = 0) -> Path | None:
    """The first undamaged checkpoint, which start ``number`` of a launch takes over; each rank checks its share of the
    files. DataError if all are damaged.
    """
    run, error = plan.config.run.path, ""
    for path in plan.checkpoints:
        error = next(filter(None, job.gather(store.find_error(path, job.rank, job.size))), "")
        if not error:
            job.agree(partial(take_over, plan, path, launch, number))
            return path
        if job.rank == 0:
            log.warning(f"{path.name} cannot be used: {error}")
    if tried := plan.checkpoints:
        job.agree(lambda: raise_data_error(f"{error}; {store.remedy_for_checkpoint(run, tried[-1], tried)}"))
    if plan.parent:
        job.agree(plan.parent.check)
        model_files.check(job, plan.parent.folder)
    job.agree(partial(take_over, plan, None, launch, number))
    if job.rank == 0:
        log.info(f"no checkpoint: starting from {plan.parent or 'the beginning'}")
    return None


def take_over(plan: ResumePlan, path: Path | None, launch: str, number: int) -> None:
    """Start from a checkpoint, or from the beginning: nothing rejects the request any more, so only now the run has its
    settings, and the end of the last job is not the run's. The record of the start comes last: with it a later start of
    the launch goes on with these settings. It is not counted if the same launch restarts the job, which has its own
    limit.
    """
    run, examples = plan.config.run.path, None
    if not plan.again:
        examples = store.read_manifest(path).state["examples"] if path else 0
        run_record.check_progress(run, examples)
    if path:
        resume_from(run, path)
    if plan.resumed:
        disk.remove_file(run / RESULT_NAME)
        config.save(run, plan.config)
    run_record.begin_start(run, launch, number, examples)


def resume_from(run: Path, path: Path) -> None:
    """Set newer checkpoints aside, so that the next job resumes from what this one saves."""
    log.info(f"resuming from {path}")
    for newer in store.Store(run).set_aside_after(path):
        log.warning(f"set aside, because it is newer: {newer}")


def raise_data_error(text: str) -> None:
    """Raise a DataError."""
    raise DataError(text)


def record(run: Path, supervised: Supervised, how: str, lost: str = "", more: Mapping[str, Any] = NOTHING) -> None:
    """On the first rank: log in one sentence how the run recovers, and record it, with the fields ``more``."""
    load, age, this = more.get("seconds", {}).get("load", 0.0), process_age(), f"start {supervised.start} of this job"
    if how == MEMORY:
        log.info(f"{this}: every rank resumes from its memory")
    elif how == PARTIAL:
        log.info(
            f"{this}: {lost}: it is rebuilt from the newest saves, every other rank resumes from its memory (partial"
            " recovery)"
        )
    else:
        there = f"{'the ' * (how == FROM_BEGINNING)}{how}"
        log.info(f"{this}: {lost}: all ranks go back to {there} (full recovery)")
    before = [each["at"] for each in RunRecord.read(run).recoveries]
    run_record.add(run, {
        "start": supervised.start,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "why": last_end(run, datetime.fromisoformat(before[-1]) if before else None),
        "how": how,
        "lost": lost,
        **more,
        "seconds": {
            "ranks": round(max(age, time.time() - supervised.ended) - load, 3),  # another host's clock, or one set back
            "process": round(age - load, 3),
            **more.get("seconds", {}),
        },
    })  # fmt: skip


class Lost(Protocol):
    """A count, in memory that outlives a kill, of something that a kill may lose."""

    @property
    def lost(self) -> int:
        """How many are not reported yet."""

    def reported(self) -> None:
        """Mark them as reported."""


def resumed(notes: RecoveryNotes, examples: int, lost: Sequence[Lost], trainers: Conversation) -> None:
    """All ranks are ready, and training starts after ``examples`` of all trainers: from now on it can resume from this
    memory. If this start is itself a recovery, complete its record, with what this trainer has ``lost`` in flight, in
    the order of ``LOST_ON_THE_WAY``. All ``trainers`` call it.
    """
    first, outcome, booking, memory = trainers.rank == 0, dict[str, Any](), notes.booking, notes.memory
    (at, *_) = trainers.gather(noted_ledger(memory)[1].get("at") if first else None)
    if at and memory.noted.get("forgotten") != at:  # a kill came between the two notes
        forget(memory, lost, at)
    by_trainer = trainers.gather([each.lost for each in lost])
    if first:  # its memory is complete only with this note
        sums = map(sum, zip(*by_trainer, strict=True))
        found = {"examples": examples, **dict(zip(LOST_ON_THE_WAY, sums, strict=True))}
        outcome = run_record.outcome(notes.run, {**found, **booking.losses, "pls": booking.pls})
        notes.book(outcome)
    (at, *_) = trainers.gather(outcome.get("at"))  # no trainer forgets its losses before they are noted
    forget(memory, lost, at)
    memory.ready()
    if outcome:
        run_record.complete(notes.run, outcome)
        notes.log_recoveries()


def forget(memory: RankMemory, lost: Sequence[Lost], at: str | None) -> None:
    """Forget the losses: the outcome of the recovery that began ``at`` this time includes them."""
    for each in lost:
        each.reported()
    memory.note(forgotten=at)
