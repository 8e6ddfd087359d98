"""How long the shadow thread rests, and when a fixed rate is due: arithmetic, against a clock that the test moves."""

from types import SimpleNamespace

import pytest

from ssmpi import sync
from ssmpi.runtime.mpi.world import shadow_share
from ssmpi.runtime.topology import Role
from ssmpi.sync import pace

TRAINER, EMBEDDING_PS, SYNC_PS = Role.TRAINER, Role.EMBEDDING_PS, Role.SYNC_PS
QUICKSTART = [TRAINER, TRAINER, EMBEDDING_PS, SYNC_PS]  # on two cores
FULL = shadow_share(QUICKSTART, threads=1, cores=2)


class Clock:
    """Processor seconds of the shadow thread and seconds of the world; rests move the latter alone."""

    def __init__(self, monkeypatch, busy, waiting=0.0):
        self._busy, self._waiting = list(busy), waiting
        self.used = self.now = 0.0
        self.rests = []
        monkeypatch.setattr(pace, "time", SimpleNamespace(thread_time=lambda: self.used, monotonic=lambda: self.now))

    # as much of a synchronizer as a pace needs
    idle = in_the_step = closed = needed = False
    leads, members, partner = True, 1, sync.ALL_TRAINERS

    @property
    def exchange(self):
        return self

    def begin(self):
        pass

    def round(self):
        self.used += self._busy[len(self.rests)]
        self.now += self._busy[len(self.rests)] + self._waiting

    def close(self):
        self.closed = True

    # as much of an event
    def clear(self):
        self.rests.clear()

    def is_set(self):
        return len(self.rests) == len(self._busy)

    def wait(self, seconds):
        self.rests.append(seconds)
        self.now += seconds


def shadow_runs(clock, share, **options):
    """The rests of a shadow thread that was given ``share`` of a core by its host."""
    own = SimpleNamespace(join=lambda: None)

    def start(name, body):
        body()
        return own

    shadow = pace.pace_of([clock], sync.Options(**options), 1, start, share)
    assert isinstance(shadow, pace.Shadow)
    shadow._finished = clock
    shadow.begin()
    assert clock.closed
    return clock.rests


def test_the_shadow_thread_is_the_default_and_has_no_share_of_its_own():
    assert (sync.Options().pace, sync.Options().cpu_share) == ("shadow", 0.0)


def test_where_every_thread_has_a_core_rounds_run_back_to_back(monkeypatch):
    clock = Clock(monkeypatch, [0.001, 0.3, 2.0])
    assert shadow_runs(clock, shadow_share(QUICKSTART, threads=1, cores=6)) == [0.0, 0.0, 0.0]


def test_on_a_full_host_rounds_take_the_shipped_share_of_its_cores(monkeypatch):
    """1 % of two cores for two shadow threads: 1 % of one for each."""
    assert pytest.approx(0.01) == FULL
    clock = Clock(monkeypatch, [0.001, 0.004, 0.002, 0.005])
    assert shadow_runs(clock, FULL) == pytest.approx([0.099, 0.396, 0.198, 0.495])
    assert clock.used / clock.now == pytest.approx(FULL)


def test_what_a_round_waits_for_others_is_not_its_own(monkeypatch):
    """Processor seconds count, not those in which messages were on their way."""
    assert shadow_runs(Clock(monkeypatch, [0.001], waiting=7.0), FULL) == pytest.approx([0.099])


def test_no_rest_is_longer_than_a_second(monkeypatch):
    """A round that took longer than the share pays for in a second takes more than its share."""
    clock = Clock(monkeypatch, [0.0101, 0.0102, 0.1, 20.0])
    assert shadow_runs(clock, FULL) == pytest.approx([0.9999, 1.0, 1.0, 1.0])


def test_cpu_share_decides_instead_of_the_host(monkeypatch):
    assert shadow_runs(Clock(monkeypatch, [0.01, 0.2]), FULL, cpu_share=0.25) == pytest.approx([0.03, 0.6])
    assert shadow_runs(Clock(monkeypatch, [0.01]), 1.0, cpu_share=0.02) == pytest.approx([0.49])


def due_at(due, clock, calls, step=1.0):
    """The numbers of the calls, from 1, at which a round was due."""
    found = []
    for call in range(1, calls + 1):
        clock.now += step
        if due.count():
            found.append(call)
    return found


def test_every_iterations_counts_a_thread_or_all_together(monkeypatch):
    clock, due = Clock(monkeypatch, []), pace.RoundTimer(sync.Options(pace="fixed_rate", every_iterations=3))
    assert due_at(due, clock, 10) == [3, 6, 9]
    due.begin(per=2)
    assert due_at(due, clock, 13) == [6, 12]


def test_every_so_many_seconds_since_the_last_round(monkeypatch):
    clock, due = Clock(monkeypatch, []), pace.RoundTimer(sync.Options(pace="fixed_rate", every_seconds=2.5))
    assert due_at(due, clock, 10) == [3, 6, 9]
    due.begin()
    assert due_at(due, clock, 6, step=0.5) == [5]
