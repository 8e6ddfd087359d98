"""Full recovery: which checkpoint all ranks go back to, or the beginning of the run; and what that changes in the run's
folder.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi import config
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files.log import log
from ssmpi.runtime.files.run_files import RESULT_NAME
from ssmpi.state.checkpoint import disk, model_files, store
from ssmpi.state.recovery import run_record

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.world import Job
    from ssmpi.state.recovery.start import ResumePlan


def choose_checkpoint(job: Job, plan: ResumePlan) -> Path | None:
    """The first undamaged checkpoint; each rank checks its share of the files. DataError if all are damaged."""
    run, error = Path(plan.config.run.folder), ""
    for path in plan.checkpoints:
        error = next(filter(None, job.gather(store.find_error(path, job.rank, job.size))), "")
        if not error:
            job.agree(partial(take_over, plan, path))
            return path
        if job.rank == 0:
            log.warning(f"{path.name} cannot be used: {error}")
    if tried := plan.checkpoints:
        job.agree(lambda: raise_data_error(f"{error}; {store.remedy_for_checkpoint(run, tried[-1], tried)}"))
    if plan.parent:
        job.agree(plan.parent.check)
        model_files.check(job, plan.parent.folder)
    job.agree(partial(take_over, plan, None))
    if job.rank == 0:
        log.info(f"no checkpoint: starting from {plan.parent or 'the beginning'}")
    return None


def take_over(plan: ResumePlan, path: Path | None) -> None:
    """Start from a checkpoint, or from the beginning: nothing rejects the request any more, so only now the run has its
    settings, and the end of the last job is not the run's.
    """
    run = Path(plan.config.run.folder)
    if path:
        resume_from(run, path, again=plan.again)
    elif not plan.again:
        run_record.count_start(run, 0)
    if plan.resumed:
        disk.remove_file(run / RESULT_NAME)
        config.save(run, plan.config)


def resume_from(run: Path, path: Path, *, again: bool = False) -> None:
    """Record the start, unless the same launch restarts the job (``again``), which has its own limit; set newer
    checkpoints aside, so that the next job resumes from what this one saves.
    """
    if not again:
        run_record.count_start(run, store.read_manifest(path).state["examples"])
    log.info(f"resuming from {path}")
    for newer in store.Store(run).set_aside_after(path):
        log.warning(f"set aside, because it is newer: {newer}")


def raise_data_error(text: str) -> None:
    """Raise a DataError."""
    raise DataError(text)
