"""A round that is late because a partner sleeps, seen from the worker threads: a property of ``test_algorithms``, also
over real ranks, where MPI holds the request and not a pretended one. ``test_stalls`` has whole runs.
"""

import threading
import time

import numpy as np
from sync_bodies import PARAMETERS, on_trainers, replica, with_pace

from ssmpi import sync
from ssmpi.runtime.mpi.waiting import WaitOptions, wait

ROUND, LATE = 3, 0.4  # trainer 1 is late in this round: in the foreground by so many seconds,
ENOUGH, LIMIT = 20, 60.0  # in the background until each worker of trainer 0 has done so many steps, at most 60 s
STEP, STEPS = 1e-3, 200  # seconds of a step, and how many each thread does
WAITING, TAG = WaitOptions(time_limit_seconds=2 * LIMIT), 99


def late_partner(world, options):
    """Iterations of each worker thread of trainer 0 in the late round."""
    home, begun, seen = sync.LocalTrainer(np.zeros(2, np.int64)), threading.Event(), []

    def gradients(thread):
        time.sleep(STEP)
        if options.pace == "shadow" and home.iterations[thread] == STEPS // 2:
            begun.wait(LIMIT)  # half of the steps are left for the late round, whenever it begins
        return np.zeros(PARAMETERS, np.float32)

    def report(before):
        """Tell trainer 1 once the workers have trained enough, or will not."""
        limit = time.monotonic() + LIMIT
        while (home.iterations - before).min() < ENOUGH and time.monotonic() < limit:
            time.sleep(STEP)
        wait(world.control.isend(np.zeros(1), 1, TAG), WAITING, "trainer 1")

    def work(synchronizers):
        (own,) = synchronizers
        exchange, number = own.exchange.reference, [0]

        def late(snapshot, active):
            number[0] += 1
            if number[0] != ROUND:
                return exchange(snapshot, active)
            before, background = home.iterations.copy(), options.pace == "shadow"
            begun.set()
            if world.rank == 1 and background:
                wait(world.control.irecv(np.zeros(1), 0, TAG), WAITING, "trainer 0")
            elif world.rank == 1:
                time.sleep(LATE)
            elif background:
                threading.Thread(target=report, args=(before,), daemon=True).start()
            reference = exchange(snapshot, active)
            seen.append(home.iterations - before)
            return reference

        own.exchange.reference = late
        with_pace(world, options, synchronizers, gradients, [STEPS, STEPS])
        return seen

    return on_trainers(world, options, replica(0), work, home)


def check_late_partner(results, options):
    """In the background workers go on while a round waits; in the foreground they stand still."""
    (iterations,) = results[0]
    if options.pace == "shadow":
        assert iterations.min() >= ENOUGH
    else:
        assert iterations.sum() == 0
