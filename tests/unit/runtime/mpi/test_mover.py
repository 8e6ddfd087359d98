"""Mailboxes of ranks that share no memory: what is posted in one arrives in the other, without its sender's help."""

import threading

import numpy as np
import pytest
from rank_pool import over_mpi
from ranks import PATIENCE, over_threads
from test_mailbox import LIMIT, MESSAGES, TWO, exchange

from ssmpi.runtime.errors import PeerError
from ssmpi.runtime.mpi.mailbox import DONE, Box, Mailboxes, post, take
from ssmpi.runtime.mpi.mover import Mover
from ssmpi.runtime.mpi.waiting import WaitOptions
from ssmpi.runtime.topology import Role

LARGE = 2_000_000  # numbers: MPI libraries send them in pieces, for which both ends have to call


def moved(world, *arguments):
    """A body: ``exchange`` where nobody maps anything; and whether the mover has ended."""
    if world.role is not Role.TRAINER:
        return None
    threads, movers = [], []

    def move(mailboxes):
        movers.append(Mover(mailboxes))
        threads.append(threading.Thread(target=movers[0].run, daemon=True))
        threads[0].start()

    found = exchange(world, *arguments, mapped=False, use=move)
    movers[0].end()
    threads[0].join(PATIENCE)
    return found, threads[0].is_alive()


@pytest.mark.parametrize("run", [over_threads, over_mpi])
def test_no_message_is_torn_or_lost(run):
    assert run(TWO, moved, MESSAGES // 20)[:2] == [([-1, -1], False)] * 2


def large(world):
    """A body: the first trainer posts a large message and waits, without MPI, until it is answered; bytes counted."""
    if world.role is not Role.TRAINER:
        return None
    made = Mailboxes(world.trainers, [Box(0, 1, 4 * LARGE), Box(1, 0, 4)], WaitOptions(), mapped=False)
    there, back = made.addresses.tolist()
    values, mover = np.full(LARGE, world.index, np.float32), Mover(made)
    world.traffic.on = True
    thread = threading.Thread(target=mover.run, daemon=True)
    thread.start()
    if world.index:
        codes = take(there, values, LARGE, False, False, LIMIT), post(back, values, 1, False, LIMIT)
    else:
        codes = post(there, values, LARGE, False, LIMIT), take(back, values, 1, False, False, LIMIT)
    mover.end()
    thread.join(PATIENCE)
    return codes, float(abs(values).max()), world.traffic.by_name()["bytes_trainers"]


@pytest.mark.parametrize("run", [over_threads, over_mpi])
def test_a_large_message_needs_no_call_of_its_sender(run):
    """And each message counts once, without any header, at its sender."""
    expected = [((DONE, DONE), 0.0, 4.0 * LARGE), ((DONE, DONE), 0.0, 4.0)]
    assert run(TWO, large)[:2] == expected


def two_at_once(world):
    """A body: the first trainer posts twice before the other takes; what that one finds."""
    if world.role is not Role.TRAINER:
        return None
    made = Mailboxes(world.trainers, [Box(0, 1, 4)], WaitOptions(), mapped=False)
    mover, (box,) = Mover(made), made.addresses.tolist()
    found, value = [], np.zeros(1, np.float32)
    for number in (1.0, 2.0):
        if world.index == 0:
            mover.move()  # the last one has left
            value[:] = number
            assert post(box, value, 1, False, LIMIT) == DONE
            assert mover.move()
        world.trainers.gather(0)
        if world.index == 1:
            found.append(mover.move())
        world.trainers.gather(0)
    for _ in range(2 * world.index):
        assert take(box, value, 1, False, False, LIMIT) == DONE
        found.append(float(value[0]))
        mover.move()
    return found


def test_a_message_waits_until_its_mailbox_is_empty():
    """And what was moved at once counts as moved: otherwise naps would grow while messages come and go."""
    assert over_threads(TWO, two_at_once)[1] == [True, False, 1.0, 2.0]


def nobody_receives(world):
    if world.role is not Role.TRAINER:
        return None
    made = Mailboxes(world.trainers, [Box(0, 1, 4)], WaitOptions(time_limit_seconds=0.2), mapped=False)
    error = ""
    if world.index == 0:
        assert post(made.addresses[0], np.zeros(1, np.float32), 1, False, LIMIT) == DONE
        with pytest.raises(PeerError) as caught:
            Mover(made).run()
        error = str(caught.value)
    world.trainers.gather(0)
    return error


def test_a_member_that_never_receives_is_named():
    assert over_threads(TWO, nobody_receives)[0].startswith("no answer from trainer 1 within 0.2 s")
