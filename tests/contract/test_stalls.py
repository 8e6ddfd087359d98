"""The headline: while a round stalls, worker threads train on at full rate. Rounds in the foreground stand still with
it: the control, without which counting iterations would show nothing.

Whole runs (``train.hogwild``, its trainers, servers and paces) over pretended ranks: a round that is held up goes on
when every worker thread of every trainer has done its iterations, or when too much time has passed.
"""

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from ranks import PATIENCE, address_of
from runs import train_over_threads

from ssmpi.data.trained_rows import TrainedRows
from ssmpi.runtime.mpi.shared_lock import SharedLock
from ssmpi.sync.easgd import ElasticCenter, InPlaceCenter
from ssmpi.sync.host_team import HostTeam
from ssmpi.sync.ma import Average

ENOUGH = 40  # iterations of every worker thread while one round is held up
BEFORE = 60  # iterations after which worker threads wait for the round that is held up
LIMIT = 60  # seconds until they have them
STANDING = 1.0  # seconds in which nothing happens where rounds are in the foreground
EVERY = 5  # iterations from one round in the foreground to the next
STALLED = 4  # the round that is held up
TWO_BY_TWO = (
    "topology.trainers=2",
    "topology.threads=2",
    "topology.embedding_ps=1",
    "data.batch_size=8",
    "data.handout=static",
)


@dataclass
class Stall:
    """Holds up one call of whatever passes here and counts what the trainers do meanwhile."""

    limit: float
    trainers: list[TrainedRows] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)  # iterations per second before it and in it
    done: np.ndarray | None = None  # iterations in it, (trainers, threads)
    begun: threading.Event = field(default_factory=threading.Event)
    _calls: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _first: tuple[float, int] = (0.0, 0)

    def iterations(self):
        return np.array([trained.batches for trained in self.trainers])

    def passes(self, *arguments):
        with self._lock:
            self._calls += 1
            call = self._calls
        if call == 1:
            self._first = time.monotonic(), self.iterations().sum()
        if call == STALLED:
            self._hold()

    def _hold(self):
        began, before = time.monotonic(), self.iterations()
        self.begun.set()
        while (self.iterations() - before).min() < ENOUGH and time.monotonic() < began + self.limit:
            time.sleep(0.01)
        self.done = self.iterations() - before
        since, at_first = self._first
        self.rates = [(before.sum() - at_first) / (began - since), self.done.sum() / (time.monotonic() - began)]


def silent_sync_ps(stall, inject):
    """The sync PS says nothing: whoever asks it waits."""
    inject(ElasticCenter, "exchange", stall.passes)


def sleeping_partner(stall, inject):
    """Trainer 1 comes late to an all-reduce."""
    inject(Average, "of", stall.passes, where=lambda average, *_: average._trainers.rank == 1)


def sleeping_leader(stall, inject):
    """The trainer that runs the rounds of its host comes late to one."""
    inject(HostTeam, "wait_for_members", stall.passes)


def locked_center(stall, inject):
    """Somebody else has the center's lock for a while."""

    def take(center, lock, *_):
        taken = threading.Event()
        threading.Thread(target=hold, args=(lock, taken)).start()
        taken.wait()

    def hold(lock, taken):
        with SharedLock.at(address_of(lock.file)):
            taken.set()
            stall.passes()

    inject(InPlaceCenter, "move", take)


BY_MESSAGE = "run.shared_memory=false"


FAULTS = {
    "easgd": (silent_sync_ps, ("sync.algorithm=easgd", "topology.sync_ps=1", BY_MESSAGE)),
    "easgd in place": (locked_center, ("sync.algorithm=easgd", "topology.sync_ps=1")),
    "ma": (sleeping_partner, ("sync.algorithm=ma", BY_MESSAGE)),
    "ma in place": (sleeping_leader, ("sync.algorithm=ma",)),
    "bmuf": (sleeping_partner, ("sync.algorithm=bmuf", BY_MESSAGE)),
    "bmuf in place": (sleeping_leader, ("sync.algorithm=bmuf",)),
}


@pytest.fixture
def stalled(tmp_path, small_data, inject):
    """``stalled(algorithm, limit, *overrides)``: what was done while a round of a run was held up."""

    def run(algorithm, limit, *overrides):
        stall, (hold, settings) = Stall(limit), FAULTS[algorithm]

        def wait_for_it(trained, thread, rows):
            if trained.batches[thread] == BEFORE:
                assert stall.begun.wait(PATIENCE)

        inject(TrainedRows, "__init__", lambda trained, *_: stall.trainers.append(trained), after=True)
        inject(TrainedRows, "add", wait_for_it)
        hold(stall, inject)
        finished = train_over_threads(tmp_path, small_data, *TWO_BY_TWO, *settings, *overrides)
        assert finished.result["examples"] == 6_000  # a round that was late harms nobody
        assert stall.done is not None, "no round was held up"
        return stall

    return run


@pytest.mark.parametrize("measured", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["go on", "rate"])
@pytest.mark.parametrize("algorithm", FAULTS)
def test_a_stalled_background_round_leaves_workers_at_full_rate(stalled, algorithm, measured):
    """Each thread has data of its own, so that none is out of it before all have gone on."""
    stall = stalled(algorithm, LIMIT)
    assert stall.done.shape == (2, 2)
    assert stall.done.min() >= ENOUGH, "a worker thread waited for a round"
    before, meanwhile = stall.rates
    if measured:  # a third, because other programs come and go
        assert meanwhile > before / 3, "workers train on, but slower"


@pytest.mark.parametrize(("algorithm", "most"), [("easgd", EVERY), ("ma", 2 * EVERY + 2), ("bmuf", 2 * EVERY + 2)])
def test_a_stalled_foreground_round_stops_everybody(stalled, algorithm, most):
    """No thread gets beyond its own next round; of threads that meet for it, one may have done the iterations
    of both.
    """
    stall = stalled(algorithm, STANDING, "sync.pace=fixed_rate", f"sync.every_iterations={EVERY}")
    assert stall.done.max() <= most < ENOUGH
