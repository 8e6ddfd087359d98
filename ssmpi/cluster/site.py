"""The site file, a TOML file beside the run file: what the cluster is like and how jobs are placed on it. A run file
says what to train, a site file says where; any run file works with any site file.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ssmpi.runtime import settings
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.host.schedulers import SCHEDULERS, Scheduler
from ssmpi.runtime.settings import COUNT, positive, printable, require, within


@dataclass(frozen=True)
class Node:
    """The ``[node]`` section: what jobs may use of one node."""

    cores: int
    """Cores of a node."""
    memory_gb: float
    """Memory of a node, in GB."""
    count: int | None = None
    """Number of nodes; a run that needs more is refused."""

    def __post_init__(self) -> None:
        within("cores", self.cores, 1, COUNT)
        positive("memory_gb", self.memory_gb, 1e9)
        within("count", 1 if self.count is None else self.count, 1, COUNT)


@dataclass(frozen=True)
class SitePlacement:
    """The ``[placement]`` section: which ranks share a node."""

    trainers_per_node: int = 1
    """Trainers on a node."""
    trainer_cores: int | None = None
    """Cores of a trainer. Unset: one for each worker thread and one for its shadow thread."""
    servers: Literal["spread", "packed"] = "spread"
    """``spread`` puts PSs evenly beside the trainers; ``packed`` puts them on as few nodes of their own as possible."""
    server_cores: int = 1
    """Cores of a PS."""
    spare_hosts: int = 0
    """Extra nodes to request, to replace lost ones. Without a batch system the unused ``launcher.hosts`` are the
    spares.
    """

    def __post_init__(self) -> None:
        within("trainers_per_node", self.trainers_per_node, 1, COUNT)
        within("server_cores", self.server_cores, 1, COUNT)
        within("spare_hosts", self.spare_hosts, 0, COUNT)
        within("trainer_cores", 1 if self.trainer_cores is None else self.trainer_cores, 1, COUNT)


@dataclass(frozen=True)
class Launcher:
    """The ``[launcher]`` section: how ranks are started."""

    command: Literal["srun", "mpirun"] = "mpirun"
    """``srun`` or ``mpirun``, with the same placement."""
    mpi: Literal["openmpi", "mpich"] = "openmpi"
    """MPI library: ``openmpi``, or ``mpich`` for MPICH and its derivatives (Intel MPI)."""
    srun_mpi: str = "pmix"
    """``--mpi`` of srun: ``pmix`` for Open MPI, ``pmi2`` for MPICH and Intel MPI; ``srun --mpi=list`` lists them."""
    interface: str | None = None
    """Network for MPI: a name (``ib0``) or, with Open MPI, an address range (``10.1.0.0/16``). Unset: MPI chooses."""
    hosts: tuple[str, ...] = ()
    """Hosts to use without a scheduler."""
    arguments: tuple[str, ...] = ()
    """Further arguments for the launcher, passed as they are."""

    def __post_init__(self) -> None:
        for host in self.hosts:
            require(
                bool(re.fullmatch(r"[\w.:%][\w.:%-]*", host, re.ASCII)),
                f"hosts: {host!r} is not the name or address of a host: correct or remove it",
            )
        if again := [host for host, count in Counter(self.hosts).items() if count > 1]:
            raise SettingsError(f"hosts: {again[0]!r} is named twice: name each host once")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a batch job asks for, with any batch system."""

    time: str = "24:00:00"
    """Time limit, as the batch system takes it."""
    account: str | None = None
    """Account to charge: with LSF a project, with Flux a bank."""
    exclusive: bool = False
    """Request whole nodes."""
    requeue: bool = True
    """Requeue the job when its time is over, as often as it makes progress."""
    options: tuple[str, ...] = ()
    """Further options of the batch file, passed as they are."""

    def __post_init__(self) -> None:
        for name in ("time", "account"):
            printable(name, getattr(self, name))
        for option in self.options:
            require(option.startswith("-"), f"options: '{option}' is not an option of a batch file: it begins with '-'")
            printable("options", option)


@dataclass(frozen=True, kw_only=True)
class Slurm(Batch):
    """The ``[slurm]`` section: what a batch job asks for."""

    partition: str | None = None
    """Partition. Unset: the cluster's own default."""
    signal_seconds: int = 180
    """Seconds before the limit at which the run is told to save and exit. SLURM may be a minute late: allow twice the
    time of a save, plus a minute.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        within("signal_seconds", self.signal_seconds, 1, COUNT)
        printable("partition", self.partition)


@dataclass(frozen=True, kw_only=True)
class Queued(Batch):
    """What a batch job asks for where jobs go to queues."""

    queue: str | None = None
    """Queue. Unset: the cluster's own default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        printable("queue", self.queue)


@dataclass(frozen=True, kw_only=True)
class Pbs(Queued):
    """The ``[pbs]`` section: what a batch job asks of OpenPBS or PBS Professional. The run asks how much time it has,
    and saves in time.
    """


@dataclass(frozen=True, kw_only=True)
class Lsf(Queued):
    """The ``[lsf]`` section, as ``[pbs]``, for IBM Spectrum LSF."""

    time: str = "24:00"
    """Time limit, ``HOURS:MINUTES``."""


@dataclass(frozen=True, kw_only=True)
class Flux(Queued):
    """The ``[flux]`` section, as ``[pbs]``, for Flux."""

    time: str = "24h"
    """Time limit, such as ``90m`` or ``24h``."""


@dataclass(frozen=True)
class Site:
    """A site file. Without a batch system, jobs start at once on the host of 'ssmpi submit'."""

    node: Node
    placement: SitePlacement = field(default_factory=SitePlacement)
    launcher: Launcher = field(default_factory=Launcher)
    slurm: Slurm | None = None
    pbs: Pbs | None = None
    lsf: Lsf | None = None
    flux: Flux | None = None
    setup: tuple[str, ...] = ()
    """Shell lines at the start of a batch file: load modules, activate an environment."""

    def __post_init__(self) -> None:
        require(
            self.launcher.command == "mpirun" or self.slurm is not None,
            'launcher.command = "srun" needs a [slurm] section: write one, or set launcher.command = "mpirun"',
        )
        hosts, scheduler = self.launcher.hosts, self.scheduler
        named = [known.section for known in SCHEDULERS if getattr(self, known.section)]
        require(len(named) <= 1, f"[{'] and ['.join(named)}]: a site has one batch system: remove the others")
        if hosts and scheduler:
            raise SettingsError(
                f"launcher.hosts is for sites without {scheduler.name}: remove it, {scheduler.name} names the nodes"
            )
        require(
            not hosts or self.node.count in (None, len(hosts)),
            f"node.count = {self.node.count}, but launcher.hosts names {len(hosts)}: remove one of the two",
        )

    @property
    def scheduler(self) -> Scheduler | None:
        """The batch system that has a section, if there is one."""
        return next((scheduler for scheduler in SCHEDULERS if getattr(self, scheduler.section)), None)

    @property
    def batch(self) -> Batch | None:
        """The section of the batch system."""
        return self.slurm or self.pbs or self.lsf or self.flux

    @property
    def nodes(self) -> int | None:
        """Number of nodes; None if only the scheduler knows it."""
        return self.node.count if self.scheduler else len(self.launcher.hosts) or self.node.count or 1


def load(path: Path) -> Site:
    """Read a site file; SettingsError says what is wrong with it."""
    try:
        return settings.load(Site, path, kind="site file")
    except settings.UnsetError as error:
        raise SettingsError(f"{error}; jobs/guide/cluster.md shows one, jobs/sites/ has some to start from") from None
