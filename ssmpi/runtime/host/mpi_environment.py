"""The environment variables for MPI ranks: ``ssmpi launch`` sets them, ``ssmpi doctor`` checks them. The user's own
values win.

Measured with Open MPI 5 on TCP and shared memory; a site with a fast fabric names its own ``OMPI_MCA_pml`` and
``OMPI_MCA_btl``.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import pwd
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from ssmpi.runtime.host import launcher_env, memory_folder

THREADS = {"OMP_NUM_THREADS": ("1", "every worker thread starts threads of its own, and they fight for the cores")}
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")  # of OpenMP's threads to cores
UNBOUND = ("", "false", "none", "disabled")
OPEN_MPI = {  # name: value, and the cost of not setting it; Open MPI 4 knows 'vader' only, 5 as another name of 'sm'
    "OMPI_MCA_mpi_yield_when_idle": ("1", "waiting ranks spin, each on a core that a trainer needs"),
    "OMPI_MCA_pml": ("ob1", "start-up takes a second longer, looking for fabrics that are not there"),
    "OMPI_MCA_btl": ("self,vader,tcp", "start-up takes a second longer, looking for fabrics that are not there"),
    "OMPI_MCA_osc": ("^ucx", "a harmless complaint of UCX on every rank"),
    "PMIX_MCA_psec": ("native", "under srun, a harmless complaint about help files"),
}
ONE_VALUE = ("OMP_NUM_THREADS", "OMPI_MCA_mpi_yield_when_idle")  # another value costs as much as none
# MPICH 4 moves one cell a test between ranks of a host, by default 16 KB: with sleeps in between, 4 MB took 180 ms
MPICH = dict.fromkeys(("MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_CELL_SIZE", "MPIR_CVAR_CH4_PACK_BUFFER_SIZE"), "262144")
NOT_BOUND = {  # for mpirun of Open MPI 5, of 4, of Intel MPI: else all threads of a rank share one core
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "I_MPI_PIN": "off",
}
ON_ONE_HOST = {  # on several the first host would be filled
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
WITHOUT_SCHEDULER = {  # variables of a job, which shells and containers inherit, would send ranks to its hosts
    "PRTE_MCA_ras": "^slurm,pbs,lsf,gridengine",
    "PRTE_MCA_plm": "^slurm,tm,lsf",
    "HYDRA_RMK": "user",  # MPICH's
}
ON_SEVERAL_HOSTS = {"I_MPI_PERHOST": "1"}  # else a host that -hosts names gets as many ranks as it has cores
IN_SLURM = {"SLURM_OVERLAP": "1"}  # srun's --overlap, mpirun's srun too: a step that lost a host lets go of others late
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
INTERFACE = {
    "openmpi": ("OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include"),
    "mpich": ("FI_TCP_IFACE", "UCX_NET_DEVICES", "I_MPI_HYDRA_IFACE"),
}
SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"  # where Open MPI keeps the memory that ranks of a host share
SESSIONS = "ssmpi-"  # how names of session folders in /tmp begin
SESSION_OWNER = "owner"  # a file in them, there once they are locked; it names the host
PYTHON = (sys.executable, "-P")  # this interpreter; no module of the current folder shadows an installed one
START_LIMIT = "SSMPI_START_SECONDS"  # how long ranks may take to start; the settings are known only then
PASSED_ON = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "OMP_NUM_THREADS",
    START_LIMIT,
)  # to other hosts; not OMPI_*


def home() -> dict[str, str]:
    """``HOME``, where it is not set: Open MPI does not start without it."""
    if os.environ.get("HOME"):
        return {}
    try:
        return {"HOME": pwd.getpwuid(os.geteuid()).pw_dir}
    except KeyError:  # a number without a name, in a container
        return {"HOME": tempfile.gettempdir()}


def remove_binding() -> str:
    """Remove the variables that bind OpenMP's threads, before torch loads OpenMP: it would bind the main thread to one
    core, and worker threads inherit that. A warning that names them; empty if none would bind anything.
    """
    removed = {name: os.environ.pop(name) for name in BINDING if name in os.environ}
    shown = " ".join(f"{name}={value}" for name, value in removed.items() if value.lower() not in UNBOUND)
    return shown and f"warning: {shown} is ignored: it would put all worker threads of a rank on one core"


class LauncherSettings(Protocol):
    """The part of ``[launcher]`` in a site file that decides on variables."""

    @property
    def mpi(self) -> str:
        """``openmpi`` or ``mpich``."""

    @property
    def interface(self) -> str | None:
        """The network interface that MPI uses; None leaves it to MPI."""


def recommended(launcher: LauncherSettings | None, *, one_host: bool, scheduler: str | None = None) -> dict[str, str]:
    """All variables for ranks that ``launcher`` starts; ``one_host`` if all run on this host. ``scheduler`` is the
    section of the batch system whose job it is, empty if it is none's, None if that is not known.
    """
    wanted = {name: value for name, (value, _) in {**THREADS, **OPEN_MPI}.items()} | NOT_BOUND
    if not MPICH.keys() & os.environ:  # a cell must fit into the buffer: the user's one of the two decides both
        wanted |= MPICH
    if os.geteuid() == 0:
        wanted |= AS_ROOT
    if one_host:
        wanted |= ON_ONE_HOST
    elif launcher and launcher.mpi == "mpich":
        wanted |= ON_SEVERAL_HOSTS
    if scheduler == "slurm":
        wanted |= IN_SLURM
    if scheduler == "":
        wanted |= WITHOUT_SCHEDULER
    if launcher and launcher.interface:
        wanted |= dict.fromkeys(INTERFACE[launcher.mpi], launcher.interface)
    return wanted


def environment(
    launcher: LauncherSettings | None = None, *, one_host: bool = True, scheduler: str | None = None
) -> dict[str, str]:
    """What to add to the launcher's environment, by default mpirun's on this host; the user's own values win."""
    wanted = recommended(launcher, one_host=one_host, scheduler=scheduler)
    return {name: value for name, value in wanted.items() if name not in os.environ} | home()


def make_segments_folder() -> None:
    """On each host of a job, before its ranks enter MPI: where Open MPI is told to keep its segments. It chooses
    another place where that is another user's.
    """
    folder = Path(os.environ.get(SEGMENTS, ""))
    if not memory_folder.is_of_launch(folder):  # the user's own choice
        return
    try:
        memory_folder.make(folder)
    except PermissionError:  # the ranks report it: their own memory would be there too
        del os.environ[SEGMENTS]
    except OSError:  # Open MPI has its own words for a folder that cannot be
        pass


def own_session(folder: Path) -> int:
    """Lock a session folder until the returned file is closed, at the latest when this process ends: then the next
    launcher may remove it.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # no locks on this file system: nobody else will remove the folder
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / SESSION_OWNER).write_text(socket.gethostname(), encoding="utf-8")
    return lock


_left = contextlib.ExitStack()  # what removes a single process's session folder


@atexit.register
def remove_session() -> None:
    """Remove the session folder of a single process; to be called where it ends without the usual clearing up."""
    _left.close()


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """Let Open MPI start in this block so that it leaves nothing behind where there are no other ranks: a process
    without a launcher leaves 16 MB in /dev/shm each time by its shared-memory transport, and a session folder in /tmp.
    The user's own choice of transports stays, and child processes see no change.
    """
    if not launcher_env.is_single_process():
        yield
        return
    name = "OMPI_MCA_btl"
    with contextlib.ExitStack() as restored:
        if os.environ.get(name) in (None, OPEN_MPI[name][0]):
            restored.enter_context(_variable(name, "self"))
        with contextlib.suppress(OSError):  # nowhere to make one: MPI says so, or needs none
            sessions = Path(tempfile.mkdtemp(prefix=f"{SESSIONS}alone-"))
            _left.callback(shutil.rmtree, sessions, ignore_errors=True)
            _left.callback(os.close, own_session(sessions))
            restored.enter_context(_variable("TMPDIR", str(sessions)))
        yield


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """An environment variable for the time of the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def missing(environ: Mapping[str, str], *, open_mpi: bool) -> dict[str, str]:
    """What a rank's environment lacks, as ``NAME=value``, and the cost. Fabrics are the site's choice: any value
    counts.
    """
    wanted = {**THREADS, **(OPEN_MPI if open_mpi else {})}
    if "SLURM_STEP_ID" not in environ:
        wanted.pop("PMIX_MCA_psec", None)
    found = {f"{name}={value}": cost for name, (value, cost) in wanted.items() if name not in environ}
    for name, (value, cost) in wanted.items():
        if name in ONE_VALUE and environ.get(name, value) != value:
            found[f"{name}={value} (it is {environ[name]})"] = cost
    return found


def main() -> None:
    """Print shell exports, for ``settings=$(python -P -m ssmpi.environment [one-host]) && eval "$settings"``."""
    one_host = "one-host" in sys.argv
    ours = environment(one_host=one_host, scheduler="" if one_host else None)
    print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(ours.items())))
