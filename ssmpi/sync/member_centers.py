"""The centers that a sync PS holds for groups of trainers: each member of a replica has one, of the parameters that it
owns, and asks for nothing of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ssmpi.runtime.mpi.shared_memory import Memory
from ssmpi.runtime.topology import Role

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from ssmpi.runtime.mpi.rank_memory import ArrayMemory
    from ssmpi.runtime.topology import Directory, Topology
    from ssmpi.sync.center_shard import Center


class MemberMemory:
    """The part of a sync PS's memory that one member's center uses. It calls ``ready`` when that center is complete."""

    def __init__(self, memory: ArrayMemory, member: int, ready: Callable[[], None]) -> None:
        self._memory, self._suffix, self.ready = memory, f" of member {member}", ready

    def part(self, name: str, *, shared: bool) -> Memory:
        """As ``ArrayMemory``."""
        return self._memory.part(name + self._suffix, shared=shared)

    def array(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """As ``ArrayMemory``."""
        return self._memory.array(name + self._suffix, shape, dtype)


class MemberCenters:
    """One center of each member, made by ``make``; trainers have the places of ``topology`` and the ranks of
    ``clients``. ``handle`` is the handler of ``Service.serve``.
    """

    def __init__(
        self, make: Callable[[MemberMemory], Center], topology: Topology, clients: Directory, memory: ArrayMemory
    ) -> None:
        self._missing, self._memory = topology.group, memory
        self.of_member = [make(MemberMemory(memory, member, self._ready)) for member in range(topology.group)]
        self._of_client = {
            rank: self.of_member[topology.place_of(index).member]
            for rank, (role, index) in enumerate(clients.members)
            if role is Role.TRAINER
        }

    def handle(self, source: int, tag: int, payload: np.ndarray) -> None:
        """Let the center of the asking member answer."""
        self._of_client[source].handle(source, tag, payload)

    def _ready(self) -> None:
        """Each center is complete once; the memory is when all are."""
        self._missing -= 1
        if not self._missing:
            self._memory.ready()
