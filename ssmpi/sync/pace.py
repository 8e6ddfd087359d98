"""When rounds run: on a shadow thread in the background, or at a fixed rate in the training loop. The algorithms do not
know which.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ssmpi.sync.base import SYNC_PS, Synchronizer
from ssmpi.sync.options import RoundOptions

StartThread = Callable[..., threading.Thread]  # (name, body, *arguments): begins a guarded thread of this rank


class Pace:
    """What the training loop and the trainer call on a pace. This one runs no rounds: for ``algorithm = "none"``, one
    trainer alone, and steps that are rounds.
    """

    def begin(self) -> None:
        """A segment of the run starts: worker threads are about to train."""

    def after_step(self, thread: int) -> None:
        """A worker thread has finished an iteration."""

    def thread_done(self, thread: int) -> None:
        """A worker thread has no more data in this segment of the run."""

    def end(self) -> None:
        """All worker threads of this trainer are done: take part until all trainers are."""


class Shadow(Pace):
    """Rounds back to back on a background thread (ShadowSync): training never waits for them. After a round the thread
    sleeps until it has used at most ``cpu_share`` of a core (for at most a second), so that on a fully used node it
    does not compete with the workers. ``start`` starts a guarded thread. ``before_round`` is called before each round.
    """

    LONGEST_REST = 1.0
    LONGEST_NAP = 0.005  # of a sleep after this trainer's end, when others on its host may end too

    def __init__(self, synchronizers: list[Synchronizer], cpu_share: float, start: StartThread) -> None:
        self._synchronizer, self._start = synchronizers[0], start
        self.cpu_share = cpu_share
        self.before_round: Callable[[], object] = lambda: None
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the shadow thread."""
        self._synchronizer.exchange.begin()
        self._finished.clear()
        self._thread = self._start("shadow", self._run)

    def end(self) -> None:
        """Let the round in flight finish, answer the others until they are done, stop the thread."""
        self._finished.set()
        self._synchronizer.exchange.end()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        own = self._synchronizer
        while not self._finished.is_set() or own.exchange.needed:
            self.before_round()
            began = time.thread_time()
            own.round()
            rest = (time.thread_time() - began) * (1.0 / self.cpu_share - 1.0)
            self._rest_for(min(rest, self.LONGEST_REST))
        own.close()

    def _rest_for(self, seconds: float) -> None:
        """Sleep, at most until no trainer needs rounds any more."""
        until = time.monotonic() + seconds
        if self._finished.wait(seconds):
            while self._synchronizer.exchange.needed and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, self.LONGEST_NAP))


class EachThread(Pace):
    """Fixed rate, every worker thread by its own count and independently of the others: FR-EASGD-k."""

    def __init__(self, synchronizers: list[Synchronizer], options: RoundOptions, threads: int) -> None:
        self._synchronizers, self._options = synchronizers, options
        self._due = [RoundTimer(options) for _ in range(threads)]

    def begin(self) -> None:
        """Start counting."""
        for due in self._due:
            due.begin()

    def after_step(self, thread: int) -> None:
        """Maybe a round, in the foreground."""
        if self._due[thread].count():
            self._synchronizers[thread].round()

    def end(self) -> None:
        """Run the last rounds."""
        for synchronizer in self._synchronizers:
            synchronizer.close()


class ThreadBarrier:
    """Where the worker threads of a trainer stop at their next step, and the last to arrive works for all of them."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._called = False
        self._present = self._expected = 0
        self._held = 0

    def open(self, threads: int) -> None:
        """Expect this many threads."""
        self._expected = threads

    def pause_if(self, due: Callable[[], bool], work: Callable[[], object]) -> None:
        """Call all threads to the barrier if ``due``; if any thread did, wait here until the work is done."""
        with self._condition:
            self._called = due() or self._called
            if not self._called:
                return
            self._present += 1
            held = self._held
            self._hold(work)
            while held == self._held:
                self._condition.wait()

    def leave(self, work: Callable[[], object]) -> None:
        """One thread fewer to expect; if all others are waiting, do the work for them."""
        with self._condition:
            self._expected -= 1
            if self._present:
                self._hold(work)

    def _hold(self, work: Callable[[], object]) -> None:
        if self._present < self._expected:
            return
        work()
        self._held += 1
        self._present, self._called = 0, False
        self._condition.notify_all()


class Together(Pace):
    """Fixed rate, all worker threads of the trainer pause while one of them runs the round: FR-MA, FR-BMUF."""

    def __init__(self, synchronizers: list[Synchronizer], options: RoundOptions, threads: int) -> None:
        self._synchronizer, self._threads = synchronizers[0], threads
        self._due = RoundTimer(options)
        self._meeting = ThreadBarrier()

    def begin(self) -> None:
        """Start counting."""
        self._due.begin(per=self._threads)
        self._meeting.open(self._threads)

    def after_step(self, thread: int) -> None:
        """Maybe a round, when every thread has come to this point."""
        self._meeting.pause_if(self._due.count, self._synchronizer.round)

    def thread_done(self, thread: int) -> None:
        """The others need not wait for this thread."""
        self._meeting.leave(self._synchronizer.round)

    def end(self) -> None:
        """Answer the other trainers until they are done."""
        self._synchronizer.close()


class Follower(Pace):
    """Another trainer of this host runs the rounds of this one."""

    def __init__(self, synchronizer: Synchronizer) -> None:
        self._synchronizer = synchronizer

    def begin(self) -> None:
        """A segment begins."""
        self._synchronizer.exchange.begin()

    def end(self) -> None:
        """Wait for the others of this host."""
        self._synchronizer.close()


class InStep(Pace):
    """The optimizer's step is the round."""

    def __init__(self, synchronizers: list[Synchronizer]) -> None:
        self._synchronizer = synchronizers[0]

    def end(self) -> None:
        """Take the other trainers' steps until they are done."""
        self._synchronizer.close()


class RoundTimer:
    """Counts iterations or seconds and says when a round is due."""

    def __init__(self, options: RoundOptions) -> None:
        self._options = options
        self.begin()

    def begin(self, per: int = 1) -> None:
        """Start anew; ``per`` threads count together."""
        self._iterations, self._per = 0, per
        self._last = time.monotonic()

    def count(self) -> bool:
        """One more iteration; True when a round is due now."""
        self._iterations += 1
        if self._options.every_iterations:
            return self._iterations % (self._options.every_iterations * self._per) == 0
        if time.monotonic() - self._last < self._options.every_seconds:
            return False
        self._last = time.monotonic()
        return True


PACES = {  # and the settings that only the other one reads
    "shadow": ("every_iterations", "every_seconds"),
    "fixed_rate": ("cpu_share",),
}


def unread(options: RoundOptions) -> list[str]:
    """Names of the settings that are set, but have no effect at this pace."""
    if options.algorithm == "none":
        return []
    default = RoundOptions()
    return [name for name in PACES[options.pace] if getattr(options, name) != getattr(default, name)]


def pace_of(
    synchronizers: list[Synchronizer], options: RoundOptions, threads: int, start: StartThread, share: float
) -> Pace:
    """The pace that ``[sync]`` names. With a center each worker thread may have a synchronizer, all else has one a
    trainer.

    ``share`` of a core is what this host has for the shadow thread; ``cpu_share`` overrides it.
    """
    if synchronizers[0].idle:
        return Pace()
    if synchronizers[0].in_the_step:
        return InStep(synchronizers)
    if options.pace == "shadow":
        exchange = synchronizers[0].exchange
        if not exchange.leads:
            return Follower(synchronizers[0])
        share = (options.cpu_share or share) * exchange.members
        return Shadow(synchronizers, min(1.0, share), start)
    if synchronizers[0].partner == SYNC_PS and options.by_thread:
        return EachThread(synchronizers, options, threads)
    return Together(synchronizers, options, threads)
