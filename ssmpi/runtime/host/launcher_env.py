"""The launcher's environment variables about this process, and whether the MPI library agrees. If launcher and library
do not match, they start N single processes, each of which takes itself for the whole job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from ssmpi.runtime.errors import TopologyError

RANKS_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")  # under mpirun the last is mpirun's step
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
LAUNCHER_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS")
ARRIVAL_SECONDS = 0.5


def rank() -> int | None:
    """This process's rank according to its launcher, before MPI starts; None without a launcher."""
    return _number(RANK_VARIABLES)


def ranks() -> int | None:
    """Ranks that the launcher says it started in this step, or None where it does not say."""
    return _number(RANKS_VARIABLES)


def _number(names: Sequence[str]) -> int | None:
    """The first of these variables that is a number; under srun its own comes first, others may be an earlier job's."""
    found = (os.environ.get(name, "") for name in (reversed(names) if started_by_srun() else names))
    return next((int(text) for text in found if text.isdigit()), None)


def started_by_srun() -> bool:
    """Whether srun started this process, and not an mpirun within a SLURM job."""
    if "SLURM_STEP_ID" not in os.environ:
        return False
    if os.environ.get("PMIX_NAMESPACE", "").startswith("slurm."):  # whoever starts a process sets it
        return True
    return not any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "HYDI_CONTROL_FD"))


def is_single_process() -> bool:
    """Whether there are no other ranks: no launcher started this process, or srun started this one only."""
    return not any(name in os.environ for name in LAUNCHER_VARIABLES) and not (started_by_srun() and ranks() != 1)


def check(size: int, library: str) -> None:
    """Raise TopologyError unless MPI sees all ranks that the launcher started. Each of them raises it: variables of
    another job may call a process that is alone any rank.
    """
    expected = ranks()
    if expected in (None, size):
        return
    launcher = "srun" if started_by_srun() else "the launcher"
    fitting = "pmix" if "Open MPI" in library else "pmi2"
    remedy = (
        f"use srun --mpi={fitting} (launcher.srun_mpi in the site file; 'srun --mpi=list' shows what SLURM has), "
        "or mpirun"
        if started_by_srun()
        else "start it with the mpirun of this MPI"
    )
    raise TopologyError(
        f"{launcher} started {expected} ranks but MPI sees {size}: it does not match this MPI ({library}), and each "
        f"rank would run as a separate job; {remedy}. {another_jobs()}"
    )


def another_jobs() -> str:
    """What to do about variables of a launcher that has not started this process: shells and containers inherit
    them.
    """
    names = dict.fromkeys(name for name in (*RANKS_VARIABLES, *RANK_VARIABLES) if name in os.environ)
    return f"If no launcher started this process, the variables are another job's: unset {' '.join(names)}"


def delay_first_message() -> None:
    """Under srun, wait a moment before the first message: Open MPI 5 crashes in MPI_Init when one comes in too early.

    SLURM's PMIx lets the ranks out of MPI_Init one after the other (open-mpi/ompi issue 12495; 1 start in 50 here).
    """
    if started_by_srun() and "PMIX_RANK" in os.environ:
        time.sleep(ARRIVAL_SECONDS)
