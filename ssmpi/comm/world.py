"""Joins the MPI job, agrees on settings and makes every communicator once, on the main thread, in one order.

One conversation, one communicator: ``embedding`` (pull and push), ``center`` (EASGD with the sync PSs), ``trainers``
(dense rounds), ``control`` (row blocks, reports, stop). Threads use buffer calls only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import mpi4py

mpi4py.rc.thread_level = "multiple"  # also the default; said here because everything depends on it
from mpi4py import MPI  # noqa: E402 - the thread level must be asked for before this import

from ssmpi.comm.failure import Watch, message  # noqa: E402
from ssmpi.comm.messages import Conversation  # noqa: E402
from ssmpi.errors import TopologyError, UserError  # noqa: E402
from ssmpi.topology import Role, Topology  # noqa: E402

T = TypeVar("T")

THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "SINGLE",
    MPI.THREAD_FUNNELED: "FUNNELED",
    MPI.THREAD_SERIALIZED: "SERIALIZED",
    MPI.THREAD_MULTIPLE: "MULTIPLE",
}


class Job:
    """All ranks, before anyone knows its role: enough to agree on the run file and to fail together."""

    def __init__(self) -> None:
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.host = socket.gethostname()
        self.who = f"rank {self.rank}"
        self.watch: Watch | None = None

    def agree(self, body: Callable[[], T]) -> T:
        """Run ``body`` on the first rank and give everybody its result; a UserError ends all ranks with one message."""
        result: Any = None
        failed: str | None = None
        if self.rank == 0:
            try:
                result = body()
            except UserError as error:
                failed = str(error)
                print(f"error: {error}", file=sys.stderr, flush=True)
            except Exception as error:
                failed = message(self, "main", error)
                print(failed, file=sys.stderr, flush=True)
        failed, result = self.comm.bcast((failed, result))
        if failed is not None:
            raise SystemExit(2)
        return result

    def agree_all(self, body: Callable[[], T]) -> T:
        """Run ``body`` on every rank; if it fails on any, the lowest such rank says why and all end."""
        try:
            result, failed = body(), None
        except UserError as error:
            result, failed = None, str(error)
        failures = [(r, text) for r, text in enumerate(self.comm.allgather(failed)) if text is not None]
        if failures:
            if failures[0][0] == self.rank:
                print(f"error: {self.who} (rank {self.rank}, host {self.host}): {failed}", file=sys.stderr, flush=True)
            raise SystemExit(2)
        return result  # type: ignore[return-value]

    def abort(self, code: int) -> None:
        """End the whole job at once. Whoever calls this has said why."""
        if self.watch:
            self.watch.leaving()
        sys.stderr.flush()
        self.comm.Abort(code)

    def leave(self) -> None:
        """Wait for all ranks, quietly, before the process ends: nobody is missed by accident."""
        if self.watch:
            self.watch.leaving()
        self.comm.Barrier()


def join() -> Job:
    """Enter the job; TopologyError when the MPI library or the launcher will not do."""
    granted = MPI.Query_thread()
    if granted < MPI.THREAD_MULTIPLE:
        raise TopologyError(
            f"this MPI library grants thread level {THREAD_LEVELS[granted]}, ssmpi needs MULTIPLE: use one built with "
            f"thread support (pip install 'ssmpi[mpi]'); found {MPI.Get_library_version().splitlines()[0]}"
        )
    job = Job()
    expected = launched_ranks()
    if expected is not None and expected != job.size:
        raise TopologyError(
            f"the launcher started {expected} ranks but MPI sees {job.size}: launcher and MPI library do not belong "
            "together (with SLURM try srun --mpi=pmix or mpirun; 'ssmpi doctor' shows the library)"
        )
    return job


def launched_ranks() -> int | None:
    """Ranks that the launcher says it started in this step, or None where it does not say."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None


class World:
    """This rank's place in the topology and its communicators."""

    def __init__(self, job: Job, topology: Topology) -> None:
        self.topology = topology
        self.rank, self.size, self.host = job.rank, job.size, job.host
        self.role, self.index = topology.role_of(job.rank)
        self.who = topology.name_of(job.rank)
        self._job = job
        job.who = self.who
        self.embedding = self._conversation(Role.TRAINER, Role.EMBEDDING_PS)
        self.center = self._conversation(Role.TRAINER, Role.SYNC_PS)
        self.trainers = self._conversation(Role.TRAINER)
        self.control = self._conversation(Role.TRAINER)
        job.watch = Watch(job.comm, job, [topology.name_of(r) for r in range(job.size)])

    def abort(self, code: int) -> None:
        """End the whole job at once. Whoever calls this has said why."""
        self._job.abort(code)

    def _conversation(self, *roles: Role) -> Conversation:
        """A communicator of the ranks that play ``roles``, in rank order; on other ranks one of this rank alone."""
        members = [r for role in roles for r in self.topology.ranks_of(role)]
        comm = self._job.comm.Split(0 if self.role in roles else 1 + self.rank, self.rank)
        return Conversation(comm, [self.topology.name_of(r) for r in members])


def versions() -> dict[str, str]:
    """MPI library, its standard and the thread level, for ``doctor`` and the run folder."""
    with contextlib.suppress(MPI.Exception):
        return {
            "mpi_library": MPI.Get_library_version().splitlines()[0].split(",")[0].strip(),
            "mpi_standard": ".".join(map(str, MPI.Get_version())),
            "mpi_threads": THREAD_LEVELS[MPI.Query_thread()],
        }
    return {"mpi_library": "unknown", "mpi_standard": "unknown", "mpi_threads": "unknown"}
