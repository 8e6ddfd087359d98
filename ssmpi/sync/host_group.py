"""The trainers of one host, whose replicas one of them, the leader, averages in place: a round costs a few passes over mapped
memory and wakes nobody. Leaders of several hosts meet in an all-reduce, so a host counts once on the network.

Every trainer says when it ends a part of the run, on a board that the host shares; the leader goes on for the others until
all have, as an all-reduce among trainers would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from ssmpi.comm.shared_memory import Memory, Shared, attach
from ssmpi.comm.waiting import SUPERVISOR, Pause

if TYPE_CHECKING:
    from ssmpi.comm.messages import Conversation

CLOSED, TALLY = 0, slice(1, 5)  # on the board: the last part the leader has closed; its counts of rounds
ENDED = 5  # from here on, for each member: the last part it has ended


@njit(cache=True, nogil=True)
def take_snapshot(weights: np.ndarray, snapshot: np.ndarray, total: np.ndarray, counts: bool) -> None:
    """snapshot = weights, all float32 (n,); and total += snapshot, if it ``counts``."""
    for i in range(weights.shape[0]):
        snapshot[i] = weights[i]
        if counts:
            total[i] += snapshot[i]


class HostGroup:
    """One member's view of its group. ``members`` are ranks of ``trainers``, the leader's first; ``replicas`` their live vectors,
    float32 (parameters,), on a member that is led only its own. ``leaders`` are the leaders of all groups.
    """

    def __init__(
        self, trainers: Conversation, members: Sequence[int], replicas: Sequence[np.ndarray], leaders: Conversation,
        board: np.ndarray,
    ) -> None:  # fmt: skip
        self._trainers, self._members, self._replicas, self._board = trainers, members, replicas, board
        self.leaders, self._place = leaders, members.index(trainers.rank)
        self.leads = self._place == 0
        self._snapshots = [np.empty_like(replica) for replica in replicas] if self.leads else []
        self._part = 0
        nothing = np.empty(0, np.float32)
        take_snapshot(nothing, nothing, nothing, True)  # compiles now, not in the first round

    @property
    def size(self) -> int:
        """Trainers of this group."""
        return len(self._members)

    @property
    def tally(self) -> np.ndarray:
        """Rounds, their seconds, staleness and divergence, as the leader counts them for all: float64 (4,), shared."""
        return self._board[TALLY]

    def begin(self) -> None:
        """A part of the run begins."""
        self._part += 1

    @property
    def others_train(self) -> bool:
        """Whether a member besides the leader has not ended this part."""
        return bool((self._board[ENDED + 1 :] < self._part).any())

    def end(self) -> None:
        """This member has ended the part."""
        self._board[ENDED + self._place] = self._part

    def close(self) -> None:
        """The leader has ended the part for all."""
        self._board[CLOSED] = self._part

    def wait_for_leader(self) -> None:
        """Wait until the leader has closed this part, however long the others train: a rank that dies ends the job."""
        pause = Pause(SUPERVISOR)
        while self._board[CLOSED] < self._part:
            pause.nap()

    def snapshot(self, part: slice, total: np.ndarray, *, everyone: bool) -> int:
        """Take snapshots of a fragment of all replicas; ``total`` becomes the sum of those that still train, or of all. Returns
        how many those are.
        """
        total[:], count = 0.0, 0
        for member, (replica, snapshot) in enumerate(zip(self._replicas, self._snapshots, strict=True)):
            counts = everyone or bool(self._board[ENDED + member] < self._part)
            take_snapshot(replica[part], snapshot[part], total, counts)
            count += counts
        return count

    def pairs(self, part: slice) -> list[tuple[np.ndarray, np.ndarray]]:
        """A fragment's live weights and their snapshot, of every member."""
        return [(w[part], s[part]) for w, s in zip(self._replicas, self._snapshots, strict=True)]

    def share(self, values: np.ndarray) -> np.ndarray:
        """The leader's ``values`` in memory that its whole group sees. Every trainer calls."""
        return share(self._trainers, self._members[0], values)


def form(trainers: Conversation, weights: np.ndarray, host: str, memory: Memory) -> HostGroup | None:
    """The group of this trainer, whose replica lies in ``memory`` of ``host``; None if all trainers would be alone in theirs.

    Every trainer calls. One that cannot be mapped, or is asked for messages (``Own`` memory), is alone.
    """
    found = trainers.gather((host, memory.address))
    if len({other for other, address in found if address}) == sum(bool(address) for _, address in found):
        return None
    members = [rank for rank, (other, address) in enumerate(found) if address and other == host]
    if trainers.rank not in members:
        members = [trainers.rank]
    replicas, leads = [weights], trainers.rank == members[0]
    try:
        if leads:
            addresses = [found[member][1] for member in members[1:]]
            replicas += [attach(address, weights.nbytes).view(np.float32) for address in addresses]
        mapped = True
    except OSError:
        mapped = False
    able = trainers.gather(mapped)
    if not all(able[member] for member in members):
        members, replicas, leads = [trainers.rank], [weights], True
    board = share(trainers, members[0], np.zeros(ENDED + len(members)))
    leaders = trainers.split(0 if leads else 1)
    alone = all(size == 1 for size in trainers.gather(len(members)))
    return None if alone else HostGroup(trainers, members, replicas, leaders, board)


def share(trainers: Conversation, leader: int, values: np.ndarray) -> np.ndarray:
    """``values`` of the trainer ``leader`` in memory of its own that this trainer sees too. Every trainer calls."""
    memory = Shared()
    if trainers.rank == leader:
        mine = memory.allocate(values.nbytes).view(values.dtype)
        mine[:] = values
        trainers.gather(memory.address)
        return mine
    return attach(trainers.gather(b"")[leader], values.nbytes).view(values.dtype)
