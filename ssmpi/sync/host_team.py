"""The trainers of one host, whose replicas one of them, the leader, averages in place: a round is one pass over mapped
memory and wakes nobody. Leaders of several hosts meet in an all-reduce between two such passes, so a host counts once
on the network.

Every trainer records on a board in shared memory when it begins and ends a segment of the run. A round waits until all
members have begun, as an all-reduce among trainers would, so a member can restore, restart or save its replica
undisturbed while training is paused. The leader runs rounds for the others until all have ended; those that have ended
follow the mean with weight 0. Sums are taken in the order of the replicas, as with messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from ssmpi.runtime.compiled.cache_lines import ask_to_write
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.mpi.shared_memory import Memory, PrivateMemory, SharedMemory, attach, placed
from ssmpi.runtime.mpi.waiting import SUPERVISOR, Backoff, WaitOptions, wait_until

if TYPE_CHECKING:
    from ssmpi.runtime.mpi.messages import Conversation

CLOSED, TALLY = (
    0,
    slice(1, 4),
)  # on the board: the last segment that the leader closed; rounds, seconds, staleness
OF_MEMBERS = 4  # from here on, float64 (3, members): the last segment each has begun and ended, its divergence
BLOCK = 256  # floats: larger blocks of several page-aligned vectors evict each other from the first-level cache
LINE = 16  # floats of a cache line
AHEAD = 2 * BLOCK  # floats between processing and prefetching
compiled = njit(cache=True, nogil=True, error_model="numpy")  # otherwise the check for a zero divisor slows the loop


@intrinsic
def _floats(typing: Any, address: Any) -> Any:
    """A pointer to float32 at an address."""
    pointer = types.CPointer(types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.uint64), generate


class Replicas:
    """Live vectors, float32 (parameters,) each, for compiled code, with a cache-aligned buffer for ``blocks``, one of
    each and one of their mean.
    """

    def __init__(self, vectors: list[np.ndarray]) -> None:
        self._vectors = vectors  # keeps them alive while their addresses are used
        self.addresses = np.array([vector.ctypes.data for vector in vectors], np.uint64)
        size = (len(vectors) + 1) * BLOCK
        blocks = np.empty(size + LINE, np.float32)
        first = -(blocks.ctypes.data // blocks.itemsize) % LINE
        self.blocks = blocks[first : first + size].reshape(-1, BLOCK)


@compiled
def take_mean(addresses: np.ndarray, counts: np.ndarray, start: int, size: int, blocks: np.ndarray) -> None:
    """Copy ``size`` floats of each replica from ``start`` on into the first rows of ``blocks``, and their mean into its
    last one, over the replicas that count, bool (replicas,), at least one.

    The replicas' cache lines are in their workers' caches. Reading and then writing a line would transfer it twice, so
    lines are prefetched for writing, two blocks ahead.
    """
    for k in range(addresses.shape[0]):
        for i in range(start + AHEAD, start + AHEAD + size, LINE):
            ask_to_write(addresses[k] + np.uint64(4 * i))  # type: ignore[call-arg]
    mean, number = blocks[-1], np.float32(0.0)
    mean[:size] = np.float32(0.0)
    for k in range(addresses.shape[0]):
        live, snapshot = carray(_floats(addresses[k] + np.uint64(4 * start)), size), blocks[k]  # type: ignore[call-arg]
        for i in range(size):
            snapshot[i] = live[i]
        if counts[k]:
            number += np.float32(1.0)
            for i in range(size):
                mean[i] += snapshot[i]
    for i in range(size):
        mean[i] /= number


@compiled
def move(addresses: np.ndarray, start: int, blocks: np.ndarray, reference: np.ndarray, alpha: float) -> None:
    """Move that part of every replica towards its ``reference``, as ``merge_difference``."""
    a, size = np.float32(alpha), reference.shape[0]
    for k in range(addresses.shape[0]):
        live, snapshot = carray(_floats(addresses[k] + np.uint64(4 * start)), size), blocks[k]  # type: ignore[call-arg]
        for i in range(size):
            live[i] += a * (reference[i] - snapshot[i])


@compiled
def average(addresses: np.ndarray, counts: np.ndarray, size: int, blocks: np.ndarray, alpha: float) -> None:
    """Move every replica, of ``size`` floats, towards the mean of those that count: block by block, so that a block
    stays in the cache between reading it and writing it back.
    """
    block = blocks.shape[1]
    for start in range(0, size, block):
        part = min(block, size - start)
        take_mean(addresses, counts, start, part, blocks)
        move(addresses, start, blocks, blocks[-1, :part], alpha)


@njit(cache=True, nogil=True)
def take_snapshot(weights: np.ndarray, snapshot: np.ndarray, total: np.ndarray, counts: bool) -> None:
    """snapshot = weights, all float32 (n,); and total += snapshot if ``counts``."""
    for i in range(weights.shape[0]):
        snapshot[i] = weights[i]
        if counts:
            total[i] += snapshot[i]


class HostTeam:
    """One member's view of its team. ``members`` are ranks of ``trainers``, the leader's first; ``replicas`` their
    live vectors, float32 (parameters,), on a member that is led only its own. ``leaders`` are the leaders of all
    teams.
    """

    def __init__(
        self, trainers: Conversation, members: Sequence[int], replicas: Sequence[np.ndarray], leaders: Conversation,
        board: np.ndarray,
    ) -> None:  # fmt: skip
        self._trainers, self._members, self._replicas, self._board = trainers, members, replicas, board
        self._begun, self._ended, self._divergence = board[OF_MEMBERS:].reshape(3, len(members))
        self.leaders, self._place = leaders, members.index(trainers.rank)
        self.leads = self._place == 0
        self._snapshots = [np.empty_like(replica) for replica in replicas] if self.leads else []
        self.in_place = Replicas(list(replicas))
        self._segment = 0
        nothing = np.empty(0, np.float32)
        take_snapshot(nothing, nothing, nothing, True)  # compiles now, not in the first round
        average(self.in_place.addresses, self.active, 0, self.in_place.blocks, 0.0)

    @property
    def size(self) -> int:
        """Trainers of this team."""
        return len(self._members)

    @property
    def leader(self) -> int:
        """Its rank among ``trainers``."""
        return self._members[0]

    @property
    def tally(self) -> tuple[float, float, float, float]:
        """Rounds, their seconds and staleness as the leader counts them for all; this member's last divergence."""
        rounds, seconds, staleness = self._board[TALLY].tolist()
        return rounds, seconds, staleness, float(self._divergence[self._place])

    def count(self, rounds: int, seconds: float, staleness: float) -> None:
        """The leader's rounds so far."""
        self._board[TALLY] = rounds, seconds, staleness

    def note_divergence(self, member: int, divergence: float) -> None:
        """How far the leader found a member from the reference."""
        self._divergence[member] = divergence

    def begin(self) -> None:
        """This member begins the next segment of the run: from now on the leader may move its replica."""
        self._segment += 1
        self._begun[self._place] = self._segment

    def end(self) -> None:
        """This member has ended the segment."""
        self._ended[self._place] = self._segment

    @property
    def alone(self) -> bool:
        """Whether all trainers of the job are in this team, so that its mean is the global one."""
        return self.size == self._trainers.size

    @property
    def active(self) -> np.ndarray:
        """Which members have not ended this segment, bool (members,)."""
        active: np.ndarray = self._ended < self._segment
        return active

    @property
    def training(self) -> bool:
        """Whether any member has not ended this segment."""
        return bool(self.active.any())

    def wait_for_members(self, waiting: WaitOptions) -> None:
        """Wait until every member has begun this segment."""
        if (self._begun < self._segment).any():
            wait_until(lambda: (self._begun >= self._segment).all(), waiting, "the other trainers of this host")

    def close(self) -> None:
        """The leader has ended the segment for all."""
        self._board[CLOSED] = self._segment

    def wait_for_leader(self) -> None:
        """Wait, without a limit, until the leader has closed this segment: a rank that dies ends the job anyway."""
        pause = Backoff(SUPERVISOR)
        while self._board[CLOSED] < self._segment:
            pause.nap()

    def snapshot(self, total: np.ndarray, *, everyone: bool) -> int:
        """Take snapshots of all replicas; ``total`` becomes the sum of those that still train, or of all
        with ``everyone``. Returns their number.
        """
        total[:], count = 0.0, 0
        for member, (replica, snapshot) in enumerate(zip(self._replicas, self._snapshots, strict=True)):
            counts = everyone or bool(self._ended[member] < self._segment)
            take_snapshot(replica, snapshot, total, counts)
            count += counts
        return count

    @property
    def pairs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The live weights and their snapshot, of every member."""
        return list(zip(self._replicas, self._snapshots, strict=True))

    def share(self, memory: Memory, values: np.ndarray) -> np.ndarray:
        """The leader's ``values`` in its ``memory``, mapped by its whole team. Every trainer calls it."""
        mine = placed(memory, values) if self.leads else None
        addresses = self._trainers.gather(memory.address)
        if mine is not None:
            return mine
        return attach(addresses[self._members[0]], values.nbytes).view(values.dtype)


def make_team(trainers: Conversation, weights: np.ndarray, host: str, memory: Memory) -> HostTeam | None:
    """The team of this trainer, whose replica lies in ``memory`` on ``host``; None if every team would have one
    member. Every trainer calls it. A trainer configured for messages (``PrivateMemory``) gets a team of its own, as do
    all trainers of a host whose members cannot map each other's memory.
    """
    addresses = trainers.gather((host, memory.address))
    members = [rank for rank, (other, address) in enumerate(addresses) if address and other == host]
    if trainers.rank not in members:
        members = [trainers.rank]
    if all(size == 1 for size in trainers.gather(len(members))):
        return None
    board_memory: Memory = SharedMemory() if len(members) > 1 else PrivateMemory()
    board = placed(board_memory, _empty_board(len(members))) if trainers.rank == members[0] else None
    boards, replicas = trainers.gather(board_memory.address), [weights]
    try:
        if board is None:
            board = attach(boards[members[0]], _empty_board(len(members)).nbytes).view(float)
        else:
            replicas += [attach(addresses[member][1], weights.nbytes).view(np.float32) for member in members[1:]]
        mapped = True
    except OSError:
        mapped = False
    able = trainers.gather(mapped)
    if board is None or not all(able[member] for member in members):
        members, replicas, board = [trainers.rank], [weights], _empty_board(1)
    leaders = trainers.split(0 if trainers.rank == members[0] else 1)
    alone = all(size == 1 for size in trainers.gather(len(members)))
    return None if alone else HostTeam(trainers, members, replicas, leaders, board)


def _empty_board(members: int) -> np.ndarray:
    board = np.zeros(OF_MEMBERS + 3 * members)
    board[-members:] = np.nan  # no divergence measured yet
    return board
