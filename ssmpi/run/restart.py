"""Where the ranks of a job start from: what an earlier start of the same launch has left in memory; or a checkpoint, or
the beginning, as any job.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.checkpoint.start import Start
from ssmpi.comm.memory_file import LostMemoryError, MemoryFile, Origin
from ssmpi.comm.rank_memory import ProcessMemory, RankMemory
from ssmpi.core import memory_folder
from ssmpi.core.clock import process_age
from ssmpi.core.log import last_end, log
from ssmpi.report import recoveries
from ssmpi.run import resume

if TYPE_CHECKING:
    from ssmpi.comm.world import Job
    from ssmpi.run.request import Supervised
    from ssmpi.run.resume import ResumePlan

MEMORY, BEGINNING = "memory", "beginning"  # how a run went on, if not from a checkpoint
SHOWN = 3  # ranks, in a message


def begin(job: Job, plan: ResumePlan, supervised: Supervised | None) -> Start:
    """Where this rank starts from; the first rank decides for all."""
    config, run = plan.config, Path(plan.config.run.folder)
    if supervised is None or config.recovery.mode == "off":
        return Start(resume.choose_checkpoint(job, plan))
    role, index = config.topology.role_of(job.rank)
    path = memory_folder.of_launch(config.recovery.memory_folder, supervised.launch) / f"{role}-{index}"
    who, lost = config.topology.name_of(job.rank), ""
    if plan.again:
        memory, why = look(path, supervised.launch, who)
        lost = loss(job.gather((who, why, memory.origin.start if memory else 0)))
        if memory and not lost:
            job.agree(lambda: decide(run, supervised, MEMORY, lost))
            return Start(memory=memory)
    checkpoint = resume.choose_checkpoint(job, plan)
    if plan.again:
        job.agree(lambda: decide(run, supervised, checkpoint.name if checkpoint else BEGINNING, lost))
    else:
        job.agree(lambda: recoveries.begin(run, supervised.launch))
    return Start(checkpoint, fresh(path, Origin(supervised.launch, who, supervised.start)))


def fresh(path: Path, origin: Origin) -> RankMemory:
    """Memory that the next start may go on with; where there can be none, with a warning, memory that it cannot."""
    try:
        return MemoryFile(path, origin)
    except OSError as error:
        log.warning(
            f"no memory for {origin.rank} in {path.parent.parent} ({error}): training goes on, but if a rank is killed"
            " it goes back to the newest checkpoint. Set recovery.memory_folder to a memory file system, or"
            " recovery.mode = 'off'"
        )
        return ProcessMemory()


def look(path: Path, launch: str, who: str) -> tuple[MemoryFile | None, str]:
    """What an earlier process of a rank has left, or why it cannot be used."""
    try:
        return MemoryFile.found(path, launch, who), ""
    except LostMemoryError as error:
        return None, str(error)


def loss(found: Sequence[tuple[str, str, int]]) -> str:
    """Why not all ranks can go on with their memory; empty if they can. Of each rank its name, why its memory is lost,
    and which start has made it.
    """
    lost = [(who, why) for who, why, _ in found if why]
    if lost:
        names, why = [who for who, _ in lost], lost[0][1]
        more = f" and {len(names) - SHOWN} others" * (len(names) > SHOWN)
        return f"the memory of {', '.join(names[:SHOWN])}{more} is lost ({why})"
    if len({start for *_, start in found}) > 1:
        return "the last start was killed before every rank had its memory"
    return ""


def decide(run: Path, supervised: Supervised, how: str, lost: str) -> None:
    """On the first rank: say in one sentence how the run goes on, and record it."""
    what = "every rank goes on with what its memory has kept"
    if how != MEMORY:
        what = f"{lost}: all ranks go back to {'the ' * (how == BEGINNING)}{how}"
    log.info(f"start {supervised.start} of this job: {what}")
    before = [each["at"] for each in recoveries.read(run)["recoveries"]]
    recoveries.add(run, {
        "start": supervised.start,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "why": last_end(run, datetime.fromisoformat(before[-1]) if before else None),
        "how": how,
        "lost": lost,
        "seconds": {"ranks": round(time.time() - supervised.ended, 3), "process": round(process_age(), 3)},
    })  # fmt: skip
