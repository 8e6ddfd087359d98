"""Kills in the worst moments of rounds and pulls by codecs: between a message and what its receiver makes of it. All
ranks die together, so after each kill both ends begin anew, and hold the same to the last bit after every message.
"""

import numpy as np
import pytest
from faults import Kill
from test_warm_start import counted, lost_by_start, one_process, train_with_kills  # noqa: F401 - a fixture

from ssmpi.compress import MirrorReceiver
from ssmpi.sync.elastic import ElasticCenter
from ssmpi.sync.elastic_mirrors import ClientMirrors, ReplicaMirrors
from ssmpi.sync.gradient_center import GradientCenter
from ssmpi.sync.mean_mirrors import MeanMirrors
from ssmpi.sync.push_pull import PushPull

# Threads of killed ranks end with what killed them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

SOME = "threshold:0.9"
TWO = (
    "topology.trainers=2", "topology.threads=1", "sync.fragments=2", "sync.pace=fixed_rate", "sync.every_iterations=1",
    f"sync.codec={SOME}",
)  # fmt: skip
CENTERED = (*TWO, "topology.sync_ps=1", "topology.threads=2")  # each thread has rounds and mirrors of its own


def client_of(synchronizer):
    """As a sync PS knows it."""
    return synchronizer.context.replicas.rank, synchronizer.thread


class Ends:
    """The living ends of all mirrors; ``compared`` is how often both were seen to be the same, of so many starts."""

    def __init__(self):
        self.center, self.trainers, self.compared = None, {}, 0

    def same(self, one, other):
        np.testing.assert_array_equal(one.view(np.uint32), other.view(np.uint32))
        self.compared += 1


@pytest.fixture
def ends(inject):
    """Compares both ends where neither can move on: a sync PS answers, and an owner hears, before the other one
    asks again.
    """
    found = Ends()
    for owner, note in (
        (ElasticCenter, lambda self, *_: setattr(found, "center", self)),
        (GradientCenter, lambda self, *_: setattr(found, "center", self)),
        (ReplicaMirrors, lambda self, _, shards, __, seed: vars(self).update(who=seed)),
        (PushPull, lambda self, *_: vars(self._pulled).update(who=client_of(self))),
        (MeanMirrors, lambda self, _, __, place, ___: found.trainers.update({place[0]: self})),
    ):
        inject(owner, "__init__", note, after=True)

    def moved(own, part, *_):
        fragment, theirs = own.center.shards.index([part]), found.center._clients[own.who]
        found.same(own.replica.copy[part], theirs.replica.shard(fragment))
        found.same(own.center.copy[part], theirs.center.shard(fragment))

    def pulled(own, _, fragment, *__):
        if hasattr(own, "who"):
            found.same(own.shard(fragment), found.center._mirrors[own.who].shard(fragment))

    def heard(owner, trainer, _, fragment):
        found.same(owner.replicas[trainer].shard(fragment), found.trainers[trainer].replica.shard(fragment, owner.rank))

    def learned(own, owner, _, fragment):
        part = own.shards[fragment][owner]
        found.same(own.mean.copy[part], found.trainers[owner].mean.copy[part])

    inject(ReplicaMirrors, "move", moved, after=True)
    inject(MirrorReceiver, "receive", pulled, after=True)
    inject(MeanMirrors, "receive_replica", heard, after=True)
    inject(MeanMirrors, "receive_mean", learned, after=True)
    return found


def lost(monkeypatch):
    """Pushes to the sync PS that were made and not applied; and those that all starts together have told of."""
    made = counted(monkeypatch, PushPull, "reference", after=False)
    applied = counted(monkeypatch, GradientCenter, "_step", after=True)
    told = lost_by_start(monkeypatch, trainers=2)
    return lambda: (len(made) - len(applied), sum(center for _, center, _ in told()))


KILLS = {  # what is on its way to a receiver, and what comes back
    "async_ps": (Kill(GradientCenter, "_step", 12), Kill(MirrorReceiver, "receive", 9)),
    "easgd": (Kill(ClientMirrors, "exchange", 9, after=True), Kill(ReplicaMirrors, "receive", 9)),
    "ma": (Kill(MeanMirrors, "receive_replica", 9), Kill(MeanMirrors, "receive_mean", 9)),
}


@pytest.mark.parametrize("algorithm", KILLS)
def test_both_ends_hold_the_same_whenever_they_were_killed(tmp_path, small_data, algorithm, ends, monkeypatch):
    """And training continues to its end, with every push that was lost on its way told."""
    settings = TWO if algorithm == "ma" else CENTERED
    pull = (f"sync.pull_codec={SOME}",) if algorithm == "async_ps" else ()
    account, seen = lost(monkeypatch), []
    kills = [Seen(kill, ends, seen) for kill in KILLS[algorithm]]
    run = train_with_kills(tmp_path, small_data, kills, f"sync.algorithm={algorithm}", *settings, *pull)
    assert (run.result["status"], run.result["examples"]) == ("complete", 6_000)
    assert np.all(np.diff([*seen, ends.compared]) > 4)
    if algorithm == "async_ps":
        missing, told = account()
        assert missing == told > 0


class Seen:
    """A kill; when it has come, ``seen`` gets how often ends were ``compared``."""

    def __init__(self, kill, ends, seen):
        self._kill, self._ends, self._seen = kill, ends, seen

    def __enter__(self):
        self._kill.start()

    def __exit__(self, *error):
        self._kill.__exit__(*error)
        self._seen.append(self._ends.compared)
