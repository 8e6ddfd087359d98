"""How often who waits looks: at once at first, and seldom where nothing comes."""

import numpy as np
import pytest

from ssmpi.runtime.mpi import waiting
from ssmpi.runtime.mpi.service import GOODBYE, Service
from ssmpi.runtime.mpi.waiting import Backoff


@pytest.fixture
def naps(monkeypatch):
    """The sleeps so far, none of which takes time."""
    found = []
    monkeypatch.setattr(waiting.time, "sleep", found.append)
    return found


class Silence:
    """A conversation in which nobody says anything for some seconds, then one client goodbye."""

    def __init__(self, naps, seconds):
        self._naps, self._seconds = naps, seconds

    def next_message(self, inbox):
        return (0, GOODBYE, np.empty(0, np.uint8)) if sum(self._naps) >= self._seconds else None


def test_a_server_without_messages_looks_twenty_times_a_second(naps):
    Service(Silence(naps, 61.0)).serve(1, None)
    assert sum(nap for nap in naps if nap == 0.05) == pytest.approx(60, abs=0.2)
    assert sum(naps) < 61.06


def test_no_wait_ends_later_than_a_twentieth_of_it(naps):
    pause = Backoff(20e-6)
    for _ in range(5_000):
        pause.nap()
    slept = np.cumsum(naps)
    assert np.all(np.array(naps[1:]) <= np.maximum(20e-6, 0.05 * slept[:-1]) + 1e-12)
    assert max(naps) == 10e-3


def test_naps_are_short_again_after_a_message(naps):
    pause = Backoff(longest=0.05)
    for _ in range(2_000):
        pause.nap()
    pause.reset()
    pause.nap()
    assert naps[-1] == 10e-6 < naps[-2] == 0.05
