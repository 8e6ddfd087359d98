"""Joins the MPI job, agrees on settings and makes every communicator once, on the main thread, in one order.

One conversation, one communicator: ``embedding`` (pull and push), ``center`` (rounds with the sync PSs), ``trainers``
(what all of them agree on between parts), ``replicas`` (dense rounds), ``group`` (steps of the members of one replica),
``control`` (row blocks, reports, stop). ``runtime.topology`` says who takes part in which. Threads use buffer calls
only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from ssmpi.runtime.errors import PeerError, TopologyError
from ssmpi.runtime.files import log
from ssmpi.runtime.host import launcher_env
from ssmpi.runtime.host.mpi_environment import remove_session
from ssmpi.runtime.mpi import failure, starting
from ssmpi.runtime.mpi.background import run_with_timeout
from ssmpi.runtime.mpi.failure import Watch, cause, guard, say
from ssmpi.runtime.mpi.waiting import SUPERVISOR, Backoff, WaitOptions
from ssmpi.runtime.protocols import MPIRequest

try:
    from ssmpi.runtime.mpi.mpi_start import MPI
except (ImportError, RuntimeError) as error:
    raise TopologyError(
        f"no MPI library to load: load your site's MPI module, or pip install 'ssmpi[mpi]' ({error})"
    ) from error

from ssmpi.runtime.mpi.heartbeat import Heartbeat
from ssmpi.runtime.mpi.messages import Conversation
from ssmpi.runtime.topology import CONVERSATIONS, Directory, Role, Topology
from ssmpi.runtime.traffic import Meter, Traffic, meter
from ssmpi.runtime.words import counted

T = TypeVar("T")
MakeConversation = Callable[[MPI.Comm, Directory, Meter], Conversation]
FOR_ROUNDS = 0.01  # of a host's cores, where workers and servers already use them all
ENDING_SECONDS = 60  # MPI_Finalize waits forever for a rank or a launcher daemon that is gone

MEETING_SECONDS = 7200.0  # until all ranks have come to a point of the start: some read whole checkpoints before it
ARRIVED = 7000  # the tag of an empty message to the first rank

THREAD_LEVELS = {
    MPI.THREAD_SINGLE: "SINGLE",
    MPI.THREAD_FUNNELED: "FUNNELED",
    MPI.THREAD_SERIALIZED: "SERIALIZED",
    MPI.THREAD_MULTIPLE: "MULTIPLE",
}


class Job:
    """All ranks, before any knows its role: enough to agree on the run file and to fail together."""

    def __init__(self, start: starting.StartWatch | None = None) -> None:
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.host = socket.gethostname()
        self.who, self.names = f"rank {self.rank}", [f"rank {rank}" for rank in range(self.size)]
        self._watch: Watch | None = None
        self.heartbeat: Heartbeat | None = None
        if start:
            self.heartbeat = Heartbeat(self.comm, self, self.names)
            start.end()
        self._watch = Watch(self.comm, self)
        self._watch.names = self.names

    def set_names(self, names: Sequence[str]) -> None:
        """From now on messages call the ranks by these names."""
        self.who, self.names[:] = names[self.rank], names

    def agree(self, body: Callable[[], T]) -> T:
        """Run ``body`` on the first rank and give every rank its result; if it fails, all exit with one message."""
        result: T | None = None
        failed = False
        if self.rank == 0:
            try:
                result = body()
            except Exception as error:
                failed = True
                where = f"trainer 0 (rank 0, host {self.host}): " if self.size > 1 else ""  # the role rank 0 will have
                say(f"error: {where}{cause(error)}")
        self.meet()
        agreed: tuple[bool, T] = self.comm.bcast((failed, result))
        if agreed[0]:
            if self.heartbeat:
                self.heartbeat.stop()
            raise SystemExit(2)
        return agreed[1]

    def gather(self, value: T) -> list[T]:
        """Give every rank the values of all."""
        self.meet()
        return list(self.comm.allgather(value))

    def on_this_host(self, value: T) -> list[T]:
        """The values of this host's ranks, in their order. Every rank calls it."""
        return list(self.comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank).allgather(value))

    def meet(self) -> None:
        """Wait until all ranks are here; PeerError names those that are not after MEETING_SECONDS."""
        nothing, pause = np.empty(0, np.uint8), Backoff(SUPERVISOR)
        requests: list[MPIRequest] = [self.comm.Ibarrier()]
        if self.rank:
            requests.append(self.comm.Isend(nothing, 0, ARRIVED))
        missing = [0] if self.rank else list(range(1, self.size))  # as far as this rank can know
        deadline = time.monotonic() + MEETING_SECONDS + (failure.ENDING_SECONDS if self.rank else 0.0)
        while not all(request.Test() for request in requests) or (self.rank == 0 and missing):
            for rank in list(missing) if self.rank == 0 else ():
                if self.comm.Iprobe(rank, ARRIVED):
                    self.comm.Recv(nothing, rank, ARRIVED)
                    missing.remove(rank)
            if time.monotonic() > deadline:
                names = " and ".join(self.names[rank] for rank in missing)
                raise PeerError(f"the job does not start: no answer from {names} within {MEETING_SECONDS:g} s")
            pause.nap()

    def abort(self, text: str, code: int = 1) -> None:
        """End the whole job at once; prints ``text`` unless another rank of this host has reported a failure.

        Neither a hung disk nor a full pipe keeps it from ending.
        """
        failure.start_exit_watchdog(code)
        flags = self._watch.flags if self._watch else None
        report = flags.report_once if flags else say
        run_with_timeout(failure.FATAL_REPORT_SECONDS, partial(log.record, text), partial(report, text))
        if flags:
            flags.leaving(self.rank)
        if self.comm.size == 1:  # nobody else is to be ended, and MPI would print a banner of its own
            remove_session()
            os._exit(code)
        self.comm.Abort(code)

    def leave(self, stopped: bool = False) -> bool:
        """Wait for all ranks before this process exits, as it then must soon: no rank is mistaken for a lost one.

        Whether any rank ``stopped`` early, so that all exit with one code: servers learn here what trainers agreed on.
        """
        any_stopped = np.array([stopped], np.int32)
        request, pause = self.comm.Iallreduce(MPI.IN_PLACE, any_stopped), Backoff(SUPERVISOR)
        while not request.Test():  # without a limit: a rank that dies ends the job, and others may still write
            pause.nap()
        if self.heartbeat:
            self.heartbeat.stop()
        signal.alarm(ENDING_SECONDS)
        return bool(any_stopped[0])

    def finalize(self) -> None:
        """After ``leave``: finalize MPI too, which removes its files in memory file systems."""
        MPI.Finalize()


def join(start: starting.StartWatch | None = None) -> Job:
    """Join the job; TopologyError if MPI library and launcher do not match. With ``start``, the watch over the time
    before, heartbeats begin at once.
    """
    granted = MPI.Query_thread()
    if granted < MPI.THREAD_MULTIPLE:
        raise TopologyError(
            f"this MPI library grants thread level {THREAD_LEVELS[granted]}, ssmpi needs MULTIPLE: use one built with "
            f"thread support (pip install 'ssmpi[mpi]'); found {MPI.Get_library_version().splitlines()[0]}"
        )
    launcher_env.check(MPI.COMM_WORLD.size, versions()["mpi_library"])
    launcher_env.delay_first_message()
    return Job(start)


@contextlib.contextmanager
def joined(start: starting.StartWatch | None = None) -> Iterator[Job]:
    """Join the job for the block: an exception on any rank ends all ranks. In a job of one rank it is simply raised."""
    job = join(start)
    with guard(job, "main") if job.size > 1 else contextlib.nullcontext():
        yield job


class World:
    """This rank's role and its communicators, whose ``traffic`` is counted. ``roles_here`` are those of this host's
    ranks. ``kind`` makes the conversations; a benchmark may measure or slow them down.
    """

    def __init__(self, job: Job, topology: Topology, kind: MakeConversation = Conversation) -> None:
        self.topology, self._kind = topology, kind
        self.rank, self.size, self.host = job.rank, job.size, job.host
        self.role, self.index = topology.role_of(job.rank)
        self.who = topology.name_of(job.rank)
        self._job, self.traffic = job, Traffic()
        job.set_names([topology.name_of(r) for r in range(job.size)])
        job.meet()
        conversations = map(self._conversation, CONVERSATIONS)
        self.embedding, self.center, self.trainers, self.replicas, self.group, self.control = conversations
        self.roles_here, self.shadow_share, self.oversubscribed = self._share_host()
        self._hosts: list[str] | None = job.comm.gather(self.host)  # on the first rank

    @property
    def same_role_here(self) -> int:
        """How many ranks of this host play this one's role."""
        return self.roles_here.count(self.role)

    @property
    def served(self) -> Conversation:
        """The conversation in which this rank, a server, answers requests."""
        conversation: Conversation = getattr(self, self.role.traits.serves)
        return conversation

    def abort(self, text: str, code: int = 1) -> None:
        """End the whole job at once; prints ``text`` unless another rank of this host has reported a failure."""
        self._job.abort(text, code)

    def start_heartbeat(self, waiting: WaitOptions) -> None:
        """From now on this rank's heartbeat is regular; it begins here at the latest. Call it after anything that
        blocks all threads of a process for seconds, such as importing torch.
        """
        self._job.heartbeat = self._job.heartbeat or Heartbeat(self._job.comm, self._job, self._job.names)
        self._job.heartbeat.be_regular(waiting.frozen_seconds)

    @property
    def hosts(self) -> list[str]:
        """On the first rank, the host of each rank; elsewhere empty."""
        return self._hosts or []

    def describe_hosts(self) -> str:
        """Which host this rank is on; on the first rank, which hosts all are on."""
        if self._hosts is None:
            return f"rank {self.rank} of {self.size} on host {self.host}, process {os.getpid()}"
        by_host: dict[str, list[int]] = {}
        for rank, host in enumerate(self._hosts):
            by_host.setdefault(host, []).append(rank)
        places = "; ".join(f"{host}: {self.topology.names_of(ranks)}" for host, ranks in by_host.items())
        return f"{counted(self.size, 'rank')} on {counted(len(by_host), 'host')}: {places}"

    def _share_host(self) -> tuple[list[Role], float, str]:
        """The roles of this host's ranks; the share of a core for each shadow thread; and, on the host's first rank, a
        warning if there are fewer cores than worker threads.
        """
        ranks = self._job.on_this_host((self.rank, self.role, frozenset(os.sched_getaffinity(0))))
        here = [(role, cores) for _, role, cores in ranks]
        roles, threads = [role for role, _ in here], self.topology.threads
        cores = len(frozenset().union(*(cores for _, cores in here)))
        warning = over_subscription(self.host, here, threads) if self.rank == ranks[0][0] else ""
        return roles, shadow_share(roles, threads, cores), warning

    def _conversation(self, name: str) -> Conversation:
        """A communicator of the ranks that this one talks to, in rank order; its color is the first of them."""
        comm = self._job.comm.Split(self.topology.conversation_of(name, self.rank)[0], self.rank)
        return self._kind(comm, self.topology.directory(name, self.rank), meter(self.traffic, name))


def over_subscription(host: str, ranks: Sequence[tuple[Role, Collection[int]]], threads: int) -> str:
    """A warning if the worker threads of all ``ranks`` of a host, or of one, outnumber the cores that they may use;
    else empty.
    """
    bound = [cores for role, cores in ranks if role is Role.TRAINER]
    workers, cores = threads * len(bound), len(set().union(*(cores for _, cores in ranks)))
    if workers > cores:
        return (
            f"over-subscribed: {workers} worker threads of {counted(len(ranks), 'rank')} share "
            f"{counted(cores, 'core')} of host {host}; "
            "fewer threads or trainers would do the same work with less switching"
        )
    fewest = min(map(len, bound), default=threads)
    if threads > fewest:
        return (
            f"over-subscribed: {threads} worker threads of a trainer are bound to {fewest} of host {host}'s cores; "
            "'ssmpi doctor', started as this job is, says how to change that"
        )
    return ""


def shadow_share(roles: list[Role], threads: int, cores: int) -> float:
    """The share of a core for each shadow thread on a host with ranks of these roles: a full core if every worker,
    shadow and server thread has one; otherwise FOR_ROUNDS of the host's cores are divided among the shadow threads.
    Sync PSs need none where trainers move the center in place; requests from trainers on other hosts are not counted.
    """
    trainers = roles.count(Role.TRAINER)
    if trainers * threads + len(roles) <= cores:
        return 1.0
    return min(1.0, FOR_ROUNDS * cores / max(1, trainers))


def versions() -> dict[str, str]:
    """MPI library, its standard and the thread level, for ``doctor`` and the run folder."""
    with contextlib.suppress(MPI.Exception):
        return {
            "mpi_library": MPI.Get_library_version().splitlines()[0].split(",")[0].strip(),
            "mpi_standard": ".".join(map(str, MPI.Get_version())),
            "mpi_threads": THREAD_LEVELS[MPI.Query_thread()] if MPI.Is_initialized() else "not asked for",
        }
    return {"mpi_library": "unknown", "mpi_standard": "unknown", "mpi_threads": "unknown"}
