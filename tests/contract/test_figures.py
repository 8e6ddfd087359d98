"""What a synchronizer tells of its rounds, exactly."""

import numpy as np
import pytest
from ranks import over_threads
from sync_bodies import on_trainers, options, replica

from ssmpi import sync
from ssmpi.runtime.topology import Topology

TWO = Topology(trainers=2, threads=2, embedding_ps=1, sync_ps=0)


def figures_of_rounds(world, options):
    """Two whole rounds; while each of their messages are on the way, a worker thread does ``3 + rank`` iterations."""
    home, weights = sync.LocalTrainer(np.zeros(2, np.int64)), replica(world.rank)

    def work(synchronizers):
        (own,) = synchronizers
        exchange = own.exchange.reference

        def learn_meanwhile(*arguments):
            home.iterations[1] += 3 + world.rank
            return exchange(*arguments)

        own.exchange.reference = learn_meanwhile
        for _ in range(2):
            own.round()
        return sync.figures(synchronizers)

    return on_trainers(world, options, weights, work, home)


def test_staleness_is_what_was_done_in_rounds():
    for rank, found in enumerate(over_threads(TWO, figures_of_rounds, options("ma"))[:2]):
        assert found["rounds"] == pytest.approx(2)
        assert found["staleness"] == pytest.approx(2 * (3 + rank))
        assert found["round_seconds"] > 0


def test_divergence_is_relative_to_the_references_length():
    """When last looked at, which is in the first round."""
    mean = (replica(0) + replica(1)) / 2
    for rank, found in enumerate(over_threads(TWO, figures_of_rounds, options("ma", alpha=1.0))[:2]):
        expected = np.linalg.norm(replica(rank) - mean) / np.linalg.norm(mean)
        assert found["divergence"] == pytest.approx(expected, rel=1e-5)
