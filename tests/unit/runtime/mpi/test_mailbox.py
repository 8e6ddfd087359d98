"""Mailboxes: a message is never torn, whoever is late; who waits sleeps, without the interpreter, and not forever."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from mailbox_order import reused_too_early
from rank_pool import over_mpi
from ranks import PATIENCE, over_threads
from strength import in_soak

from ssmpi.model import bfloat16
from ssmpi.runtime.compiled.aligned import aligned
from ssmpi.runtime.compiled.atomic import load
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.mpi import mailbox
from ssmpi.runtime.mpi.mailbox import ANOTHER_SIZE, DONE, LATE, Box, Mailboxes, post, take
from ssmpi.runtime.mpi.waiting import WaitOptions
from ssmpi.runtime.topology import Role, Topology

LONGEST = 300  # numbers of a message
MESSAGES = 20_000
SECONDS = 1_000_000_000
LIMIT = PATIENCE * SECONDS
TWO = Topology(trainers=2)


@pytest.fixture
def box():
    """The address of an empty mailbox."""
    memory = aligned((mailbox.room(4 * LONGEST),), np.uint8)
    memory[:] = 0
    yield memory.ctypes.data
    del memory


# Payloads


@pytest.mark.parametrize("add", [False, True])
def test_the_first_numbers_arrive_in_another_vector(box, add):
    given, out = np.random.default_rng(0).normal(size=(2, 10)).astype(np.float32)
    expected = out.copy()
    expected[3:] = given[:7] + (expected[3:] if add else 0)
    assert post(box, given, 7, False, LIMIT) == DONE
    assert take(box, out[3:], 7, False, add, LIMIT) == DONE
    np.testing.assert_array_equal(out, expected)


def test_bfloat16_is_rounded_as_that_of_products(box):
    given = np.random.default_rng(0).normal(size=60).astype(np.float32)
    given[:8] = 0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-40, 1 + 1 / 256
    halves, out, sums = np.empty(60, np.uint16), np.empty(60, np.float32), np.ones(60, np.float32)
    bfloat16.rows(given, 1, 60, 60, halves)
    for target, add in ((out, False), (sums, True)):
        assert post(box, given, 60, True, LIMIT) == DONE
        assert take(box, target, 60, True, add, LIMIT) == DONE
    np.testing.assert_array_equal(out.view(np.uint32), halves.astype(np.uint32) << 16)
    np.testing.assert_array_equal(sums, 1 + out)


def test_a_size_that_was_not_sent_is_noticed(box):
    values = np.zeros(8, np.float32)
    assert post(box, values, 8, False, LIMIT) == DONE
    assert take(box, values, 7, False, False, LIMIT) == ANOTHER_SIZE
    assert take(box, values, 8, False, False, LIMIT) == DONE


# Numbered messages


@njit(cache=True, nogil=True)
def size_of(number):
    return 1 + number * 7919 % LONGEST


@njit(cache=True, nogil=True)
def send(box, answers, first, count):
    """Messages that consist of their own number; every third one waits for an answer. Returns the first that fails."""
    values, answer = np.empty(LONGEST, np.float32), np.empty(1, np.float32)
    for number in range(first, first + count):
        values[:] = number
        size = size_of(number)
        if post(box, values, size, False, LIMIT) != DONE:
            return number
        if number % 3 == 0 and (take(answers, answer, 1, False, False, LIMIT) != DONE or answer[0] != number):
            return number
    return -1


@njit(cache=True, nogil=True)
def receive(box, answers, first, count):
    """Check each message, and answer every third one."""
    values = np.empty(LONGEST, np.float32)
    for number in range(first, first + count):
        size = size_of(number)
        values[:] = -1.0
        if take(box, values, size, False, False, LIMIT) != DONE:
            return number
        for place in range(LONGEST):
            if values[place] != (number if place < size else -1.0):
                return number
        if number % 3 == 0 and post(answers, values, 1, False, LIMIT) != DONE:
            return number
    return -1


def exchange(world, count, mapped=True, use=lambda mailboxes: None):
    """A body: two trainers send each other messages at once; the first that each found wrong, or -1."""
    if world.role is not Role.TRAINER:
        return None
    boxes = [Box(*ends, size) for ends in ((0, 1), (1, 0)) for size in (4 * LONGEST, 4)]
    made, found = Mailboxes(world.trainers, boxes, WaitOptions(), mapped=mapped), []
    use(made)
    out, back, other, answers = np.roll(made.addresses, -2 * world.index).tolist()
    bodies = (send, out, answers), (receive, other, back)
    threads = [threading.Thread(target=lambda f, *a: found.append(f(*a, 0, count)), args=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.trainers.gather(0)
    return found


@pytest.fixture
def busy(request):
    """As many processes that compute as there are cores, or none."""
    count = os.cpu_count() if request.param else 0
    computing = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    yield
    for process in computing:
        process.kill()
        process.wait()


@pytest.mark.parametrize("busy", [False, pytest.param(True, marks=pytest.mark.soak)], indirect=True)
@pytest.mark.parametrize("run", [over_threads, over_mpi])
def test_no_message_is_torn(run, busy):
    assert run(TWO, exchange, MESSAGES)[:2] == [[-1, -1]] * 2


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("busy", [False, True], indirect=True)
@pytest.mark.parametrize("run", [over_threads, over_mpi])
def test_none_of_a_million_messages_is_torn(run, busy):
    assert run(TWO, exchange, 1_000_000, timeout=800)[:2] == [[-1, -1]] * 2


# Order


def programs(*texts):
    """Threads' actions: ``+a`` posts to mailbox a, ``-a`` takes from it."""
    return [[("post" if act[0] == "+" else "take", act[1:]) for act in text.split()] for text in texts]


@pytest.mark.parametrize(
    ("threads", "early"),
    [
        (("+a -b +a -b", "-a +b -a +b"), ""),
        (("+a +a -b -b", "-a +b -a +b"), "ab"),
        (("+a +c -b +a +c -b", "-a -c +b -a -c +b"), ""),
        (("+a +c -b +a +c -b", "-a +b -c -a +b -c"), "c"),  # b is no answer to c
        (("+a -c +a -c", "-a +b -a +b", "-b +c -b +c"), ""),  # an answer by way of another
        (("+a -b +a", "-a +b", "-a"), ""),
    ],
    ids=str,
)
def test_which_mailboxes_are_reused_too_early(threads, early):
    assert reused_too_early(programs(*threads)) == set(early)


def test_threads_that_wait_for_each_other_are_found():
    with pytest.raises(ValueError, match=r"wait for each other: .*'b'.*'a'"):
        reused_too_early(programs("-b +a", "-a +b"))


# Waiting


def nobody_answers(world):
    """A body: what the first rank gets for its second message, which nobody takes, the other for one nobody sends."""
    if world.role is not Role.TRAINER:
        return None
    made = Mailboxes(world.trainers, [Box(0, 1, 4), Box(0, 1, 4)], WaitOptions(time_limit_seconds=0.1))
    first, second = map(int, made.addresses)
    values, began = np.zeros(1, np.float32), time.monotonic()
    if world.index:
        number, code = 1, take(second, values, 1, False, False, made.limit)
    else:
        assert post(first, values, 1, False, made.limit) == DONE
        number, code = 0, post(first, values, 1, False, made.limit)
    seconds = time.monotonic() - began
    world.trainers.gather(0)  # its memory is there until the other has seen it
    return code, seconds >= 0.1, str(made.error(number, code))


def test_a_wait_ends_at_its_limit_and_names_the_member():
    text = "no answer from trainer {} within 0.1 s; look at that rank's log, or raise waiting.time_limit_seconds"
    for rank, (code, waited, error) in enumerate(over_threads(TWO, nobody_answers)[:2]):
        assert (code, waited) == (LATE, True)
        assert error.startswith(text.format(1 - rank))


def test_a_disagreement_is_a_bug_of_ssmpi():
    def both(world):
        if world.role is Role.TRAINER:
            return Mailboxes(world.trainers, [Box(0, 1, 4)], WaitOptions()).error(0, ANOTHER_SIZE)
        return None

    found = over_threads(TWO, both)
    assert isinstance(found[0], AssertionError)
    assert "mailbox 0: trainer 1" in str(found[0])


def test_who_waits_uses_no_processor_and_not_the_interpreter(box):
    """While it waits, this thread runs: it posts what ends the wait."""
    values, spent, sleeps = np.ones(1, np.float32), [], np.zeros(1, np.float32)

    def wait():
        began = time.thread_time()
        spent.append((take(box, sleeps, 1, False, False, 0), time.thread_time() - began))

    assert post(box, values, 1, False, 0) == take(box, values, 1, False, False, 0) == DONE  # compiles
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    asleep(box)
    time.sleep(0.2)
    assert post(box, values, 1, False, 0) == DONE
    waiting.join(PATIENCE)
    assert spent[0][0] == DONE
    assert spent[0][1] < 0.01


def asleep(box):
    """Return once the reader of a mailbox sleeps."""
    deadline = time.monotonic() + PATIENCE
    while not load_word(box + mailbox.READER_SLEEPS):
        assert time.monotonic() < deadline
        time.sleep(1e-3)


@njit(cache=True, nogil=True)
def load_word(address):
    return load(address)


WAITING = """
import os, signal, sys, threading, time
import numpy as np
from ssmpi.runtime.mpi.mailbox import room, take
from ssmpi.runtime.compiled.aligned import aligned

memory = aligned((room(4),), np.uint8)
memory[:] = 0
values, box = np.zeros(1, np.float32), memory.ctypes.data
take(box, values, 1, False, False, 1)
thread = threading.Thread(target=take, args=(box, values, 1, False, False, 0), daemon=True)
thread.start()
while not memory[68]:
    time.sleep(1e-3)
if sys.argv[1] == "exit":
    os._exit(7)
if sys.argv[1] == "signal":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    os.kill(os.getpid(), signal.SIGTERM)
sys.exit(7)
"""


@pytest.mark.parametrize("how", ["signal", *in_soak("exit", "end")])
def test_a_process_ends_while_a_thread_waits_without_a_limit(how):
    ended = subprocess.run([sys.executable, "-c", WAITING, how], timeout=PATIENCE, check=False)
    assert ended.returncode == 7
