"""A round that is late because a partner sleeps, seen from the worker threads: a property of ``test_algorithms``, also
over real ranks, where MPI holds the request and not a pretended one. ``test_stalls`` has whole runs.
"""

import threading
import time

import numpy as np
from sync_bodies import PARAMETERS, on_trainers, replica, with_pace

from ssmpi import sync

LATE, ROUND = 0.4, 3  # seconds that trainer 1 sleeps in this round
STEP, STEPS = 2e-3, 400  # seconds of a step, which wait for nothing but themselves; and how many each thread does


def late_partner(world, options):
    """Of the late round: iterations of each worker thread in it, and of a thread that is nobody's worker."""
    home, free, over, seen = sync.LocalTrainer(np.zeros(2, np.int64)), [0], threading.Event(), []

    def run_free():
        while not over.is_set():
            time.sleep(STEP)
            free[0] += 1

    def gradients(thread):
        time.sleep(STEP)
        return np.zeros(PARAMETERS, np.float32)

    def work(synchronizers):
        (own,) = synchronizers
        exchange, number = own.exchange, [0]

        def late(snapshot, fragment, active):
            number[0] += 1
            if number[0] == ROUND and world.rank == 1:
                time.sleep(LATE)
            before, others = home.iterations.copy(), free[0]
            if number[0] == ROUND and world.rank == 0:
                reference = exchange(snapshot, fragment, active)
                seen.append((home.iterations - before, free[0] - others))
                return reference
            return exchange(snapshot, fragment, active)

        own.exchange = late
        beside = threading.Thread(target=run_free, daemon=True)
        beside.start()
        with_pace(world, options, synchronizers, gradients, [STEPS, STEPS])
        over.set()
        beside.join()
        return seen

    return on_trainers(world, options, replica(0), work, home)


def check_late_partner(results, options):
    """In the background workers keep up with the thread that is free; in the foreground they stand still."""
    ((iterations, free),) = results[0]
    assert free > 0.1 * LATE / STEP
    if options.pace == "shadow":
        assert iterations.min() > 0.5 * free
    else:
        assert iterations.sum() == 0
