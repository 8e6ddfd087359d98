"""Starts ``mpirun`` as it should be started on a workstation, prints the command, and turns Ctrl-C into a clean stop.

``mpirun`` itself kills its ranks a quarter of a second after Ctrl-C; here the ranks get SIGUSR1 instead, finish their
step, save and leave.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from ssmpi.errors import UserError
from ssmpi.request import Request

# What makes Open MPI fit for several threads a rank and more ranks than cores; other MPIs ignore it. See README.
OPEN_MPI = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_osc": "^ucx",
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def environment() -> dict[str, str]:
    """What to add to the environment of ``mpirun``; the user's own choices win."""
    wanted = {"OMP_NUM_THREADS": "1", **OPEN_MPI, **(AS_ROOT if os.geteuid() == 0 else {})}
    return {name: value for name, value in wanted.items() if name not in os.environ}


def mpirun(ranks: int, *arguments: str) -> list[str]:
    """The command that runs this Python with ``arguments`` on so many ranks."""
    found = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise UserError("no mpirun found: install an MPI, or pip install 'ssmpi[mpi]'")
    return [found, "-n", str(ranks), sys.executable, *arguments]


def command(request: Request) -> list[str]:
    """The ``mpirun`` command of a run."""
    program = [
        "-m",
        "ssmpi",
        "train",
        *([str(request.run_file)] if request.run_file else []),
        *(["--overwrite"] if request.overwrite else []),
        *(["--resume", str(request.run)] if request.run else []),
        *(["--checkpoint", request.checkpoint] if request.checkpoint else []),
        *(["--terminal", os.ttyname(sys.stderr.fileno())] if sys.stderr.isatty() else []),
        *request.overrides,
    ]
    return mpirun(request.load().topology.size, *program)


def launch(request: Request, dry_run: bool) -> int:
    """Run ``ssmpi train`` under mpirun; returns its exit code."""
    line = command(request)
    extra = environment()
    print(
        "+ " + " ".join([*(f"{k}={shlex.quote(v)}" for k, v in extra.items()), shlex.join(line)]),
        file=sys.stderr,
        flush=True,
    )
    if dry_run:
        return 0
    job = subprocess.Popen(line, env={**os.environ, **extra}, start_new_session=True)

    def forward(signum: int, frame: FrameType | None) -> None:
        print(
            "stopping: the ranks finish their step and save (once more to end them at once)",
            file=sys.stderr,
            flush=True,
        )
        job.send_signal(signal.SIGUSR1)
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, lambda *_: job.terminate())

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(name, forward)
    return job.wait()
