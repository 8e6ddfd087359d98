"""Pushes that a kill has lost on their way are counted once, whatever is lost besides them."""

import numpy as np

from ssmpi.runtime.mpi.push_counts import AppliedPushes, SentPushes
from ssmpi.runtime.mpi.rank_memory import ProcessMemory


class Kept(ProcessMemory):
    """Memory that outlives those who count in it."""

    def __init__(self):
        self.arrays = {}

    def array(self, name, shape, dtype):
        return self.arrays.setdefault(name, np.zeros(shape, dtype))


class Trainer:
    """One trainer, of two threads, that counts its pushes to two PSs."""

    def __init__(self, servers):
        self.memory, self.servers = Kept(), servers
        self.start()

    def start(self):
        """As each of its processes does."""
        self.sent = SentPushes(self.memory, threads=2, servers=2)
        for index, memory in enumerate(self.servers):
            answer = np.empty(16, np.uint8)
            AppliedPushes(memory, clients=3).answer(1, answer)
            self.sent.compare(index, *map(int, answer.view(np.int64)))

    def push(self, server, arrived, lost=0, thread=0):
        self.sent.by_thread[thread, server] += arrived + lost
        AppliedPushes(self.servers[server], clients=3).by_client[1] += arrived

    def may_rest(self):
        """Whether each PS has applied what a drain waits for."""
        return [self.sent.to(k) == AppliedPushes(self.servers[k], 3).by_client[1] for k in (0, 1)] == [True, True]


def test_sent_and_not_applied_is_lost_and_told_once():
    trainer = Trainer([Kept(), Kept()])
    trainer.push(0, arrived=5, lost=2)
    trainer.push(1, arrived=7, lost=1, thread=1)
    trainer.start()
    trainer.start()  # killed again before anybody was told
    assert trainer.sent.lost == 3
    assert trainer.may_rest()
    trainer.sent.reported()
    trainer.push(0, arrived=4, lost=1)
    trainer.start()
    assert trainer.sent.lost == 1
    assert trainer.may_rest()


def test_a_ps_or_a_trainer_whose_memory_is_lost_begins_to_count_anew():
    trainer = Trainer([Kept(), Kept()])
    trainer.push(0, arrived=5, lost=2)
    trainer.servers[0] = Kept()  # its rows are lost too: what it had applied is not a push on its way
    trainer.push(1, arrived=3, lost=1)
    trainer.start()
    assert trainer.sent.lost == 1
    assert trainer.may_rest()
    trainer.push(0, arrived=6, lost=2)
    trainer.start()
    assert trainer.sent.lost == 3
    trainer.memory = Kept()
    trainer.start()
    assert trainer.sent.lost == 0
    assert trainer.may_rest()
    trainer.push(0, arrived=1, lost=4)
    trainer.start()
    assert trainer.sent.lost == 4
    assert trainer.may_rest()
