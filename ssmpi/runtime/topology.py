"""The role of each rank, by arithmetic alone, before any process exists. No other module computes ranks.

A new role is a member of ``Role``, a line in ``ROLES``, a module in ``ssmpi/trainer`` and a line in ``train.PARTS``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from ssmpi.runtime.errors import TopologyError
from ssmpi.runtime.settings import DERIVED, require, within
from ssmpi.runtime.words import counted

MAX_RANKS = 65_535  # of one role


class Role(StrEnum):
    """The part a rank plays, in rank order."""

    TRAINER = "trainer"
    EMBEDDING_PS = "embedding_ps"
    SYNC_PS = "sync_ps"

    @property
    def traits(self) -> RoleTraits:
        """This role's line in ``ROLES``."""
        return ROLES[self]


@dataclass(frozen=True)
class RoleTraits:
    """All that plans, layouts and communicators know about a role."""

    setting: str  # the field of ``Topology`` that says how many ranks play it
    conversations: tuple[str, ...]  # those it takes part in
    process_bytes: float  # resident memory of such a rank in the quickstart, without its data
    serves: str = ""  # the conversation in which it answers requests; empty for a rank that trains


# In the order in which all ranks make communicators.
CONVERSATIONS = ("embedding", "center", "trainers", "replicas", "group", "control")
ROLES = {
    Role.TRAINER: RoleTraits("trainers", CONVERSATIONS, process_bytes=400e6),
    Role.EMBEDDING_PS: RoleTraits("embedding_ps", ("embedding",), process_bytes=185e6, serves="embedding"),
    Role.SYNC_PS: RoleTraits("sync_ps", ("center",), process_bytes=187e6, serves="center"),
}


@dataclass(frozen=True)
class Directory:
    """Who takes part in one conversation: role and index of every member, by its rank in that conversation."""

    members: tuple[tuple[Role, int], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The members' names in messages, for example ``embedding_ps 1``."""
        return tuple(name_of(role, index) for role, index in self.members)

    def ranks_of(self, role: Role) -> tuple[int, ...]:
        """Ranks in the conversation that play ``role``, by index."""
        found = ((index, rank) for rank, (played, index) in enumerate(self.members) if played is role)
        return tuple(rank for _, rank in sorted(found))

    def subset(self, ranks: Iterable[int]) -> Directory:
        """The directory of a conversation among some of the members."""
        return Directory(tuple(self.members[rank] for rank in ranks))


class GridIndex(NamedTuple):
    """Where a trainer stands in the grid: its ``replica``, and which ``member`` of those that hold it."""

    replica: int
    member: int


def name_of(role: Role, index: int) -> str:
    """The name of the rank with this role and index in messages: ``embedding_ps 1``."""
    return f"{role} {index}"


@dataclass(frozen=True)
class Topology:
    """The ``[topology]`` section: the number of ranks of each role. Ranks are numbered in the order of ``Role``.

    Trainers form a grid: ``group`` consecutive ones are the members of one replica. ``homes`` (``hierarchy.homes``)
    selects the members that read batches, each on ``threads`` worker threads: ``all``, or the ``first`` of each group.
    """

    trainers: int = 1
    """Trainers, each with one replica of the dense model."""
    threads: int = 1
    """Hogwild worker threads of a trainer, besides its shadow thread."""
    embedding_ps: int = 1
    """Embedding parameter servers; 0 keeps the tables inside the trainer, which needs a single trainer."""
    sync_ps: int = 0
    """Sync parameter servers, for ``easgd`` and ``async_ps``."""
    group: int = 1
    """Trainers that share one replica."""
    homes: Literal["all", "first"] = field(default="all", metadata=DERIVED)

    def __post_init__(self) -> None:
        within("topology.trainers", self.trainers, 1, MAX_RANKS)
        require(1 <= self.threads < 500, f"topology.threads must be 1 to 499, got {self.threads}")
        within("topology.embedding_ps", self.embedding_ps, 0, MAX_RANKS)
        within("topology.sync_ps", self.sync_ps, 0, MAX_RANKS)
        require(
            self.embedding_ps > 0 or self.trainers == 1,
            f"topology.embedding_ps = 0 keeps the tables inside one trainer, but there are {self.trainers} trainers: "
            "set topology.embedding_ps = 1 or more",
        )
        within("topology.group", self.group, 1, MAX_RANKS)
        whole = -(-self.trainers // self.group) * self.group
        require(
            self.trainers == whole,
            f"topology.trainers = {self.trainers} is not a multiple of topology.group = {self.group}, the "
            f"trainers that hold one replica: set topology.trainers = {whole}, or topology.group = 1",
        )
        require(
            self.group > 1 or self.homes == "all",
            f"hierarchy.homes = '{self.homes}' chooses among the members of a group: set topology.group too",
        )
        require(
            self.replica_lanes < 500,
            f"topology.threads times the homes of a group must be at most 499, got {self.replica_lanes}",
        )

    @property
    def counts(self) -> dict[Role, int]:
        """Ranks by role, in rank order."""
        return {role: getattr(self, role.traits.setting) for role in Role}

    @property
    def size(self) -> int:
        """Ranks in the whole job."""
        return sum(self.counts.values())

    @property
    def replicas(self) -> int:
        """Replicas of the dense parameters."""
        return self.trainers // self.group

    @property
    def home_trainers(self) -> int:
        """How many trainers read batches."""
        return self.trainers if self.homes == "all" else self.replicas

    @property
    def lanes(self) -> int:
        """Worker threads of the whole job that read batches."""
        return self.home_trainers * self.threads

    @property
    def replica_lanes(self) -> int:
        """Threads that step a member's parameters: one for each lane of its replica."""
        return self.lanes // self.replicas

    def place_of(self, trainer: int) -> GridIndex:
        """A trainer's place in the grid, by its index."""
        return GridIndex(*divmod(trainer, self.group))

    def is_home(self, trainer: int) -> bool:
        """Whether a trainer reads batches."""
        return self.homes == "all" or self.place_of(trainer).member == 0

    def helpers(self, trainer: int) -> int:
        """Threads of a trainer that step its parameters for lanes of the other members of its replica; they are
        numbered after those of its own lanes.
        """
        return self.replica_lanes - self.threads * self.is_home(trainer)

    def same_lanes(self, other: Topology) -> bool:
        """Whether the same threads of the same trainers read batches."""
        firsts = [t.group * (t.homes == "first") for t in (self, other)]
        return (self.trainers, self.threads, firsts[0]) == (other.trainers, other.threads, firsts[1])

    def lane_of(self, thread: int) -> int:
        """The number among all lanes of a worker thread of a home, by its number among those of all trainers."""
        trainer, own = divmod(thread, self.threads)
        return thread if self.homes == "all" else self.place_of(trainer).replica * self.threads + own

    def ranks_of(self, role: Role) -> range:
        """World ranks that play ``role``."""
        first = 0
        for candidate, count in self.counts.items():
            if candidate is role:
                return range(first, first + count)
            first += count
        raise AssertionError(role)

    def role_of(self, rank: int) -> tuple[Role, int]:
        """Role of a world rank and its index among those who play it."""
        for role in self.counts:
            ranks = self.ranks_of(role)
            if rank in ranks:
                return role, rank - ranks.start
        raise AssertionError(f"rank {rank} of {self.size}")

    def conversation_of(self, name: str, rank: int = 0) -> tuple[int, ...]:
        """The world ranks with which ``rank`` talks in the conversation of that ``name``, in the order of their ranks
        there, itself included; itself alone if its role takes no part. In ``replicas`` these are the same member of
        every replica, in ``group`` the members of one, elsewhere all whose role takes part.
        """
        played, index = self.role_of(rank)
        if name not in played.traits.conversations:
            return (rank,)
        replica, member = self.place_of(index)
        if name == "replicas":
            return tuple(self.ranks_of(Role.TRAINER)[member :: self.group])
        if name == "group":
            return tuple(self.ranks_of(Role.TRAINER)[replica * self.group :][: self.group])
        return tuple(other for role in Role if name in role.traits.conversations for other in self.ranks_of(role))

    def directory(self, name: str, rank: int = 0) -> Directory:
        """Role and index of each of ``conversation_of``."""
        return Directory(tuple(map(self.role_of, self.conversation_of(name, rank))))

    def name_of(self, rank: int) -> str:
        """A rank's name in messages, for example ``embedding_ps 1``."""
        return name_of(*self.role_of(rank))

    def names_of(self, ranks: Iterable[int]) -> str:
        """Several ranks in messages: ``trainer 0 to 3, embedding_ps 1``."""
        spans: list[list[int]] = []
        for rank in ranks:
            follows = spans and spans[-1][-1] == rank - 1 and self.role_of(rank)[0] is self.role_of(rank - 1)[0]
            if follows:
                spans[-1].append(rank)
            else:
                spans.append([rank])
        return ", ".join(
            self.name_of(span[0]) + (f" to {self.role_of(span[-1])[1]}" if len(span) > 1 else "") for span in spans
        )

    def arithmetic(self) -> str:
        """The sum that makes ``size``, for messages: ``4 trainer + 1 embedding_ps + 1 sync_ps``."""
        return " + ".join(f"{count} {role}" for role, count in self.counts.items() if count)

    def check_size(self, size: int) -> None:
        """Raise TopologyError unless the job has exactly as many ranks as this topology needs."""
        if size == self.size:
            return
        found = size - (self.size - self.trainers)
        fits = (
            f", or set topology.trainers = {found}"
            if found > 0 and found % self.group == 0 and self.embedding_ps
            else ""
        )
        raise TopologyError(
            f"topology needs {counted(self.size, 'rank')} ({self.arithmetic()}), got {size}: start it with "
            f"mpirun -n {self.size}, or let 'ssmpi launch' do that{fits}"
        )
