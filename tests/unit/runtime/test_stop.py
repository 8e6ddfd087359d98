"""The phases of a trainer: what pauses resumes, what stops does not."""

from ssmpi.runtime.stop import Stop


def phases(stop):
    return stop.must_pause(), stop.stopping, stop.stopped


def test_a_pause_ends_and_a_stop_does_not():
    stop = Stop()
    assert phases(stop) == (False, False, False)
    stop.pause()
    assert phases(stop) == (True, False, False)
    stop.resume()
    assert phases(stop) == (False, False, False)
    stop.request()
    stop.pause()
    stop.resume()
    assert phases(stop) == (True, True, False)
    stop.agree()
    stop.request()
    stop.resume()
    assert phases(stop) == (True, True, True)


def test_a_signal_stops_a_trainer_at_once():
    asked = [False]
    stop = Stop(lambda: asked[0])
    asked[0] = True
    assert phases(stop) == (True, True, False)
    stop.resume()
    assert stop.stopping
