"""How fast a replica steps whose members do what ``group_walk`` says: a simulation by events, in which lanes wait for
messages, threads for cores, and messages for links. So it knows who waits for whom, which sums of products and bytes
do not say.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial

from ssmpi.tools.group_walk import Actions, Compute, Post

FIRST, LAST = 4, 12  # steps of each lane between which the rate is measured: before that lanes fall into turns
MOST_THREADS = 8  # of a member; more are simulated as so many with links that are as much slower


@lru_cache
def steps_per_second(
    homes: tuple[tuple[Actions, ...], ...], step: float, pause: float, threads: int, link: float
) -> float:
    """Of all lanes of a replica: ``threads`` at each of ``homes``, which has the actions of every member for its lanes.
    A ``step`` of the network computes so many seconds, a member has so many cores, a ``link`` carries bytes per second
    and direction, and a lane rests for a ``pause`` after each step.
    """
    more = max(1.0, threads / MOST_THREADS)
    return more * Simulation(homes, step, pause, round(threads / more), link / more).rate()


class Worker:
    """A thread of a ``member`` for one ``lane``, at its ``home`` or not; ``place`` is that of its next action."""

    def __init__(self, member: int, lane: int, actions: Actions, *, home: bool) -> None:
        self.member, self.lane, self.actions, self.home, self.place = member, lane, actions, home, 0


class Simulation:
    """As ``steps_per_second``. Cores and links serve in the order of asking; a message's bytes arrive as they leave."""

    def __init__(
        self, homes: tuple[tuple[Actions, ...], ...], step: float, pause: float, threads: int, link: float
    ) -> None:  # fmt: skip
        members = len(homes[0])
        self._step, self._pause, self._link, self._lanes = step, pause, link, len(homes) * threads
        self._cores, self._queues = [threads] * members, [deque[Worker]() for _ in range(members)]
        self._out, self._into = [0.0] * members, [0.0] * members  # when each link is free again
        self._full, self._asleep = set[tuple[int, int]](), dict[tuple[int, int], Worker]()  # by lane and mailbox
        self._now, self._events, self._ends = 0.0, list[tuple[float, int, Callable[[], None]]](), list[float]()
        self._asked = 0
        for lane in range(self._lanes):
            home = lane % len(homes)
            for member, actions in enumerate(homes[home]):
                if actions:
                    self._at(0.0, partial(self._go_on, Worker(member, lane, actions, home=member == home)))

    def rate(self) -> float:
        """Steps per second."""
        first, last = FIRST * self._lanes, LAST * self._lanes
        while len(self._ends) < last:
            self._now, _, act = heapq.heappop(self._events)
            act()
        return (last - first) / (self._ends[last - 1] - self._ends[first - 1])

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        self._asked += 1
        heapq.heappush(self._events, (moment, self._asked, act))

    def _go_on(self, worker: Worker) -> None:
        """Do what takes no time, up to the next action that does."""
        while True:
            if worker.place == len(worker.actions):
                worker.place = 0
                if worker.home:
                    self._ends.append(self._now)
                    self._at(self._now + self._pause, partial(self._go_on, worker))
                    return
            action = worker.actions[worker.place]
            worker.place += 1
            if isinstance(action, Compute):
                self._queues[worker.member].append(worker)
                self._use_cores(worker.member)
                return
            if isinstance(action, Post):
                self._leave(worker, action)
            elif (message := (worker.lane, action.box)) in self._full:
                self._full.remove(message)
            else:
                self._asleep[message] = worker
                return

    def _use_cores(self, member: int) -> None:
        while self._cores[member] and self._queues[member]:
            self._cores[member] -= 1
            worker = self._queues[member].popleft()
            action = worker.actions[worker.place - 1]
            assert isinstance(action, Compute)
            self._at(self._now + action.share * self._step, partial(self._computed, worker))

    def _computed(self, worker: Worker) -> None:
        self._cores[worker.member] += 1
        self._use_cores(worker.member)
        self._go_on(worker)

    def _leave(self, worker: Worker, message: Post) -> None:
        """Bytes begin to leave once all before them have left."""
        start = max(self._now, self._out[worker.member])
        self._out[worker.member] = start + message.size / self._link
        self._at(start, partial(self._enter, worker.lane, message))

    def _enter(self, lane: int, message: Post) -> None:
        """They arrive once all before them have arrived at the reader."""
        self._into[message.reader] = max(self._now, self._into[message.reader]) + message.size / self._link
        self._at(self._into[message.reader], partial(self._arrive, (lane, message.box)))

    def _arrive(self, message: tuple[int, int]) -> None:
        if worker := self._asleep.pop(message, None):
            self._go_on(worker)
        else:
            self._full.add(message)
