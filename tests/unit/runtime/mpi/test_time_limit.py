"""A job whose time is limited is asked to stop in time for its save."""

import signal
import time

import pytest

from ssmpi.runtime.mpi import signals

pytestmark = pytest.mark.timeout(method="thread")  # the other method takes the same timer


@pytest.fixture(autouse=True)
def no_limit(monkeypatch):
    """None before and after."""
    monkeypatch.setattr(signals, "_limit", dict(signals._limit))
    monkeypatch.setattr(signals, "_first", {})
    before = {name: signal.getsignal(name) for name in (signal.SIGALRM, signal.SIGUSR1)}
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for name, handler in before.items():
        signal.signal(name, handler)


def left():
    return signal.getitimer(signal.ITIMER_REAL)[0]


def test_the_stop_is_as_much_earlier_as_the_newest_save_took():
    signals.stop_within(1000.0, 50.0)
    assert left() == pytest.approx(950, abs=5)
    signals.expect_save(200.0)
    assert left() == pytest.approx(800, abs=5)
    signals.expect_save(20.0)
    assert left() == pytest.approx(980, abs=5)
    signals.ignore_stops()
    assert left() == 0


def test_a_time_that_is_over_is_a_request_to_stop():
    assert not signals.stop_requested()
    signals.stop_within(5.0, 60.0)
    deadline = time.monotonic() + 30
    while not signals.stop_requested():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert signals.out_of_time()


def test_without_a_limit_a_save_sets_no_timer():
    signals.expect_save(1.0)
    assert left() == 0
