"""Kills in the worst moments of rounds and pushes by codecs: between a message and what its receiver makes of it. All
ranks die together, so after each kill both ends begin anew, and hold the same to the last bit after every message.
"""

import numpy as np
import pytest
from faults import Kill
from test_warm_start import counted, lost_by_start, one_process, train_with_kills  # noqa: F401 - a fixture

from ssmpi.sync.async_ps import GradientCenter, ParameterServerExchange
from ssmpi.sync.easgd import ClientMirrors, ElasticCenter, ReplicaMirrors

# Threads of killed ranks end with what killed them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

SETTINGS = (
    "topology.trainers=2", "topology.threads=2", "topology.sync_ps=1", "sync.pace=fixed_rate",
    "sync.every_iterations=1", "sync.codec=threshold:0.9",
)  # fmt: skip


@pytest.fixture
def compared(inject):
    """How often both ends of mirrors were seen to be the same: whenever a sync PS has answered, before the client asks
    again.
    """
    centers, times = [], []
    inject(ElasticCenter, "__init__", lambda self, *_: centers.append(self), after=True)
    inject(ReplicaMirrors, "__init__", lambda self, _, __, ___, seed: vars(self).update(who=seed), after=True)

    def moved(own, *_):
        theirs = centers[-1]._clients[own.who]
        for mine, other in ((own.replica, theirs.replica), (own.center, theirs.center)):
            np.testing.assert_array_equal(mine.copy.view(np.uint32), other.copy.view(np.uint32))
        times.append(own)

    inject(ReplicaMirrors, "move", moved, after=True)
    return times


def test_both_ends_hold_the_same_whenever_they_were_killed(tmp_path, small_data, compared):
    """And training continues to its end."""
    seen = []
    kills = [Kill(ClientMirrors, "exchange", 9, after=True), Kill(ReplicaMirrors, "receive", 9)]
    kills = [Seen(kill, compared, seen) for kill in kills]
    run = train_with_kills(tmp_path, small_data, kills, *SETTINGS, "sync.algorithm=easgd")
    assert (run.result["status"], run.result["examples"]) == ("complete", 6_000)
    assert np.all(np.diff([*seen, len(compared)]) > 4)


def test_every_push_that_a_kill_has_lost_is_told(tmp_path, small_data, monkeypatch):
    """Those of one that the sync PS was about to apply, and of one whose answer its trainer was about to merge."""
    made = counted(monkeypatch, ParameterServerExchange, "reference", after=False)
    applied = counted(monkeypatch, GradientCenter, "exchange", after=True)
    told = lost_by_start(monkeypatch, trainers=2)
    kills = [Kill(GradientCenter, "exchange", 12), Kill(ParameterServerExchange, "merge", 9)]
    run = train_with_kills(tmp_path, small_data, kills, *SETTINGS, "sync.algorithm=async_ps")
    assert (run.result["status"], run.result["examples"]) == ("complete", 6_000)
    assert len(made) - len(applied) == sum(center for _, center, _ in told()) > 0


class Seen:
    """A kill; when it has come, ``seen`` gets how often ends were ``compared``."""

    def __init__(self, kill, compared, seen):
        self._kill, self._compared, self._seen = kill, compared, seen

    def __enter__(self):
        self._kill.start()

    def __exit__(self, *error):
        self._kill.__exit__(*error)
        self._seen.append(len(self._compared))
