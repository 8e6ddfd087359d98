"""What a rank logs of itself: where its threads are, and at once if it is asked."""

import json
import logging
import threading
import time

import pytest

from ssmpi.data.feed import Feed
from ssmpi.embedding.client import Lookups
from ssmpi.runtime.host import vitals
from ssmpi.runtime.host.vitals import COMPUTES, MARK, PULLS, ROUNDS, WAITS, Vitals, state_of
from ssmpi.runtime.mpi.waiting import WaitOptions, wait_until
from ssmpi.sync.pace import Pace, Shadow
from ssmpi.trainer.control import Control

NAP = ("nap", "/x/ssmpi/runtime/mpi/waiting.py", 1)
LOCK = ("wait", "/usr/lib/threading.py", 1)
HOGWILD = ("hogwild", "/x/ssmpi/train.py", 1)


def call(function, place="embedding/client.py"):
    return (function, f"/x/ssmpi/{place}", 1)


@pytest.mark.parametrize(
    ("stack", "state"),
    [
        ([call("forward_backward", "model/replica.py"), HOGWILD], COMPUTES),
        ([NAP, call("arrive"), call("prefetched"), HOGWILD], PULLS),
        ([call("push"), HOGWILD], COMPUTES),
        ([NAP, call("push_rows", "sync/synchronous.py"), call("push"), HOGWILD], ROUNDS),
        ([LOCK, call("pause_if", "sync/pace.py"), call("after_step", "sync/pace.py"), HOGWILD], ROUNDS),
        ([LOCK, call("_rest_for", "sync/pace.py"), call("_run", "sync/pace.py")], WAITS),
        ([NAP, call("serve", "runtime/mpi/service.py")], WAITS),
        ([call("handler", "embedding/server.py"), call("serve", "runtime/mpi/service.py")], COMPUTES),
    ],
)
def test_a_stack_says_what_a_thread_does(stack, state):
    assert state_of(stack) == state


def test_the_functions_that_decide_are_there():
    known = {"after_step": Pace, "next_block": Control, "batches": Feed, "arrive": Lookups, "push": Lookups}
    assert set(known) == set(vitals.STATES)
    assert all(hasattr(owner, function) for function, owner in known.items())
    assert hasattr(Shadow, vitals.RESTS)


@pytest.fixture
def worker():
    """A worker thread that waits for embedding rows."""
    came = threading.Event()

    def arrive():
        wait_until(came.is_set, WaitOptions(), "nobody")

    thread = threading.Thread(target=arrive, name="worker 3")
    thread.start()
    yield thread
    came.set()
    thread.join()


def until(happened):
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_line_has_times_memory_and_stacks(tmp_path, worker):
    own = Vitals(tmp_path)

    def waited():
        own.look()
        spent = own.line()["threads"].get("worker", {})
        return spent.get(PULLS) and spent["seconds"] and "cpu" in spent

    until(waited)
    line = own.line()
    assert line["peak"] > 1_000_000
    assert any(who == "worker 3" and any(c.startswith("wait_until (waiting.py:") for c in calls)
               for who, *calls in line["stacks"])  # fmt: skip
    assert line["threads"] == {}  # each line is of the time since the last one


def test_time_in_which_the_process_was_stopped_does_not_count(tmp_path, worker, monkeypatch):
    own = Vitals(tmp_path)
    own.look()
    monkeypatch.setattr(vitals, "SUSPENDED", 0.0)  # so that any time is too long
    own.look()
    assert own.line()["threads"] == {}


def test_lines_go_to_the_log_and_each_request_counts_once(tmp_path, monkeypatch, caplog):
    own, request = Vitals(tmp_path), tmp_path / "logs" / vitals.REQUEST
    assert not own.asked()
    request.parent.mkdir()
    for word in ("one", "two"):
        request.write_text(word)
        assert [own.asked(), own.asked()] == [True, False]
    monkeypatch.setattr(vitals, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(vitals.log, "propagate", True)
    caplog.set_level(logging.DEBUG, vitals.log.name)
    with vitals.recorded(tmp_path):
        until(lambda: caplog.messages)
    assert json.loads(caplog.messages[0].removeprefix(MARK))["stacks"][0][0] == "main"
