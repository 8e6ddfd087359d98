"""Decides where the ranks of a job start from: the memory that survived an earlier start of the same launch, with lost
parts rebuilt; or, as in any job, a checkpoint or the beginning.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ssmpi.checkpoint import store
from ssmpi.comm.memory_file import LostMemoryError, MemoryFile, Origin
from ssmpi.comm.memory_use import in_use, remove
from ssmpi.comm.rank_memory import Note, ProcessMemory, RankMemory
from ssmpi.config import differences, load
from ssmpi.core.errors import SettingsError
from ssmpi.files.log import last_end, log
from ssmpi.files.run_files import RUN_FILE
from ssmpi.host import memory_folder
from ssmpi.host.clock import process_age
from ssmpi.recovery import row_saves
from ssmpi.recovery.choice import FULL, MEMORY, PARTIAL, Choice, Found, choose
from ssmpi.recovery.ledger import Ledger
from ssmpi.recovery.start import Start
from ssmpi.recovery.state import RecoveryState
from ssmpi.run import partial_recovery, resume, run_folder

if TYPE_CHECKING:
    from ssmpi.comm.world import Job
    from ssmpi.recovery.start import ResumePlan, Supervised

NOTHING: Mapping[str, Any] = MappingProxyType({})
BEGINNING = "beginning"  # how a run recovered, if not from memory or a checkpoint


# settings that may differ between a launch and the one whose memory it resumes from
FREE = re.compile(
    r"(recovery\.(max_restarts|within_minutes|target_pls|mtbf_hours)"
    r"|checkpoint\.(every_\w+|keep|limit_seconds|stop_budget_seconds)|waiting\.\w+|run\.log_seconds) was "
)


def begin(job: Job, plan: ResumePlan, supervised: Supervised | None) -> Start:
    """The state that this rank starts from; the first rank decides for all."""
    if supervised is not None and plan.config.recovery.mode != "off":
        return Restart(job, plan, supervised).begin()
    run = Path(plan.config.run.folder)
    if plan.left:
        memory, _ = inspect_memory(*rank_memory(job, plan, plan.left.launch))
        if any(job.gather(memory is not None)):
            job.agree(lambda: refuse_left(run, "a start without 'ssmpi launch', or with recovery.mode = 'off'"))
    if job.agree(lambda: RecoveryState(run).record().launch):  # this job does not go on from that launch's memory
        remove_everywhere(job, plan, job.agree(lambda: RecoveryState(run).begin_start("", 0)))
    return without_memory(job, plan, ProcessMemory(), resume.choose_checkpoint(job, plan), 0)


class Restart:
    """A start of a job whose launch restarts it after kills."""

    def __init__(self, job: Job, plan: ResumePlan, supervised: Supervised) -> None:
        self._job, self._plan, self._supervised = job, plan, supervised
        self._run = Path(plan.config.run.folder)
        self._state = RecoveryState(self._run)
        self._path, _, self._who = rank_memory(job, plan, supervised.launch)

    def begin(self) -> Start:
        """From memory, unless no start before this one has left any, or too much of it is lost."""
        job, plan, lost, resumes = self._job, self._plan, "", self._plan.again
        if plan.again or (plan.left and plan.left.launch == self._supervised.launch):
            memory, why = self._inspect()
            found = job.gather(Found(why, memory.origin.start if memory else 0))
            resumes = plan.again or any(not each.why for each in found)
            if resumes and not plan.again:
                job.agree(self._continue)
            if resumes:
                self._name_start()
                start, lost = self._from_memory(memory, found)
                if start:
                    return start
            del memory  # which is replaced
        checkpoint = resume.choose_checkpoint(job, plan)
        if resumes:
            how = checkpoint.name if checkpoint else BEGINNING
            job.agree(lambda: self._decide(how, lost))
        else:
            before = self._name_start()
            if before != self._supervised.launch:
                remove_everywhere(job, plan, before or plan.replaced)
            if job.rank == 0:
                row_saves.say(plan.config, checkpoint)
        return without_memory(job, plan, self._fresh(), checkpoint, self._supervised.start)

    def _name_start(self) -> str:
        """Note in the run that this start is its last one; returns the launch that was noted before."""
        launch, start = self._supervised.launch, self._supervised.start
        return self._job.agree(lambda: self._state.begin_start(launch, start))

    def _inspect(self) -> tuple[MemoryFile | None, str]:
        """The memory that this rank may resume from, or why there is none."""
        memory, why = inspect_memory(self._path, self._supervised.launch, self._who)
        first = self._job.agree(lambda: self._state.record().first_start)
        if memory and memory.origin.start < first:
            return None, f"what is there is that of start {memory.origin.start}, and start {first} began without memory"
        return memory, why

    def _continue(self) -> None:
        """On the first rank: check that this launch can resume from the memory of the one before."""
        config = self._plan.config
        other = differences(load(self._run / RUN_FILE), config)
        if fixed := [each for each in other if not FREE.match(each)]:
            refuse_left(self._run, f"other settings ({'; '.join(fixed)})")
        if other:
            run_folder.write_settings(self._run, config)

    def _from_memory(self, memory: MemoryFile | None, found: list[Found]) -> tuple[Start | None, str]:
        """Start from memory; None, and why, if all ranks must go back to a checkpoint."""
        choice, ledger, timeline = self._job.agree(lambda: self._choose(memory, found))
        if choice.how == FULL:
            return None, choice.why
        if choice.how == MEMORY:
            self._job.agree(lambda: self._decide(MEMORY))
            assert memory
            return Start(memory=memory, ledger=ledger, timeline=timeline), ""
        mine = memory if memory and self._job.rank not in choice.lost else self._fresh()
        start = Start(memory=mine, ledger=ledger, timeline=timeline)
        made = partial_recovery.rebuild_lost_memory(self._job, self._plan, start, choice.lost, self._supervised.start)
        if isinstance(made, str):
            return None, f"{choice.why}, and {made}"
        assert made.repair
        more = partial_recovery.record(made.repair)
        self._job.agree(lambda: self._decide(PARTIAL, choice.why, more))
        return made, ""

    def _choose(self, memory: MemoryFile | None, found: list[Found]) -> tuple[Choice, Ledger | None, int]:
        """On the first rank: how the run recovers, its noted ledger, and its timeline."""
        config, (ledger, outcome) = self._plan.config, RecoveryState(self._run, memory).noted()
        if outcome:  # the last start may have been killed before it wrote it
            self._state.complete(outcome)
        choice = choose(found, ledger.starts if ledger else (), config.topology, config.recovery)
        if choice.how != FULL and not self._plan.again:
            resumed = (each.get("examples", 0) for each in self._state.record().recoveries)
            self._state.count_start(max(resumed, default=0))
        return choice, ledger, self._state.record().timeline

    def _fresh(self) -> RankMemory:
        memory = fresh(self._path, Origin(self._supervised.launch, self._who, self._supervised.start))
        memory.note(Note.RUN, str(self._run.resolve()))
        return memory

    def _decide(self, how: str, lost: str = "", more: Mapping[str, Any] = NOTHING) -> None:
        record_recovery(self._run, self._supervised, how, lost, more)


def without_memory(job: Job, plan: ResumePlan, memory: RankMemory, checkpoint: Path | None, start: int) -> Start:
    """Start from a checkpoint, or the beginning: this start creates all ``memory`` anew."""
    topology, run = plan.config.topology, Path(plan.config.run.folder)
    timeline = job.agree(lambda: RecoveryState(run).begin_timeline(start))
    saved = store.read_manifest(checkpoint).state if checkpoint and job.rank == 0 else {}
    ledger = Ledger.begin([start] * topology.size, topology.embedding_ps, saved.get("ledger"), saved.get("examples", 0))
    return Start(checkpoint, memory, ledger=ledger, timeline=timeline)


def fresh(path: Path, origin: Origin) -> RankMemory:
    """Memory that the next start can resume from; if that is not possible, with a warning, memory that ends with the
    process.
    """
    try:
        return MemoryFile(path, origin)
    except OSError as error:
        log.warning(
            f"no memory for {origin.rank} in {path.parent.parent} ({error}): training continues, but if a rank is"
            " killed this one loses what it has learned since the newest save. Set recovery.memory_folder to a memory"
            " file system, or recovery.mode = 'off'"
        )
        return ProcessMemory()


def remove_everywhere(job: Job, plan: ResumePlan, launch: str) -> None:
    """Remove what an earlier launch, if there was one, has left on the hosts of this job, and say where that fails."""
    found = job.gather(remove_left(plan.config.recovery.memory_folder, launch) if launch else "")
    for problem in dict.fromkeys(filter(None, found)) if job.rank == 0 else ():
        log.warning(problem)


def remove_left(memory: str, launch: str) -> str:
    """Remove the memory that an earlier, killed launch of the run left on this host; returns why it cannot be removed.
    Other ranks of the host try it too. Memory that a process still maps stays: it belongs to a running job of which
    this run folder is a copy.
    """
    folder = memory_folder.of_launch(memory, launch)
    if folder not in memory_folder.all_in(Path(memory)) or in_use(folder):  # a damaged name may lead anywhere
        return ""
    try:
        remove(folder)
    except OSError as error:
        return f"{folder} on {socket.gethostname()}, left by a launch that was killed, cannot be removed: {error}"
    return ""


def rank_memory(job: Job, plan: ResumePlan, launch: str) -> tuple[Path, str, str]:
    """Where this rank's memory of a launch is, the launch, and the rank's name."""
    config = plan.config
    role, index = config.topology.role_of(job.rank)
    folder = memory_folder.of_launch(config.recovery.memory_folder, launch)
    return folder / f"{role}-{index}", launch, config.topology.name_of(job.rank)


def refuse_left(run: Path, why: str) -> None:
    """Raise SettingsError: what the last launch left in memory must not be lost without being asked for."""
    raise SettingsError(
        f"{run}: the last launch ended before the run was saved, and its memory has survived, from which {why} cannot"
        f" resume. 'ssmpi launch --resume {run}' resumes from it; add '--checkpoint whole' to resume from the newest"
        " checkpoint, without what was learned since"
    )


def inspect_memory(path: Path, launch: str, who: str) -> tuple[MemoryFile | None, str]:
    """The memory that an earlier process of a rank left, or why it cannot be used."""
    try:
        return MemoryFile.found(path, launch, who), ""
    except LostMemoryError as error:
        return None, str(error)


def record_recovery(run: Path, supervised: Supervised, how: str, lost: str, more: Mapping[str, Any] = NOTHING) -> None:
    """On the first rank: log in one sentence how the run recovers, and record it, with the fields ``more``."""
    load, age = more.get("seconds", {}).get("load", 0.0), process_age()
    if how == MEMORY:
        log.info(f"start {supervised.start} of this job: every rank resumes from its memory")
    elif how == PARTIAL:
        log.info(
            f"start {supervised.start} of this job: {lost}: it is rebuilt from the newest saves, every other rank"
            " resumes from its memory (partial recovery)"
        )
    else:
        there = f"all ranks go back to {'the ' * (how == BEGINNING)}{how}"
        log.info(f"start {supervised.start} of this job: {lost}: {there} (full recovery)")
    before = [each["at"] for each in RecoveryState(run).record().recoveries]
    RecoveryState(run).add({
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
