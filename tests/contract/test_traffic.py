"""Bytes counted are those of the formulas that ``plan`` prints, at the counts observed."""

from dataclasses import replace

import numpy as np
import pytest
from embedding_bodies import ADAGRAD, DIM, REMOTE, SGD, batch_of
from embedding_bodies import on_trainers as with_tables
from ranks import over_threads
from sync_bodies import HOSTS, PARAMETERS, ThreadModel, close_together, live, meet, on_trainers, options, replica

from ssmpi import sync
from ssmpi.embedding import wire
from ssmpi.embedding.client import Lookups
from ssmpi.runtime.topology import Topology
from ssmpi.runtime.traffic import Link
from ssmpi.sync.ma import reduced_bytes
from ssmpi.sync.synchronous_rows import row_gradient_bytes

THREE = Topology(trainers=3, threads=1, embedding_ps=1, sync_ps=2)
ROUNDS = 4


def counts(world):
    """By name, so far."""
    return world.traffic.by_name()


def rounds(world, options):
    """Whole rounds of every trainer, none of them at the end of a part; what they have moved, and how many they were.
    With a codec one more before, which sends all.

    Gossip's odd trainers answer until the even ones have said that they are done, which takes no bytes.
    """
    weights = live(world, options, world.rank)

    def work(synchronizers):
        own = synchronizers[0]
        own.exchange.begin()
        meet(world)
        if options.codec != "dense":
            own.round()
        before, world.traffic.on = own.exchange.rounds, True
        if options.algorithm != "gossip" or world.rank % 2 == 0:
            for _ in range(ROUNDS):
                own.round()
        if options.algorithm == "gossip":
            own.close()
        world.traffic.on = False
        found = counts(world), own.exchange.rounds - before
        meet(world)
        if options.algorithm != "gossip":
            close_together(world, own)
        return found

    return on_trainers(world, options, weights, work)


WITH_ROUNDS = [name for name, kind in sync.ALGORITHMS.items() if kind.partner and not kind.in_the_step]


@pytest.mark.parametrize(
    "chosen",
    [*(options(name, shared_memory=False) for name in WITH_ROUNDS), options("easgd", codec="bf16")],
    ids=lambda chosen: f"{chosen.algorithm}-{chosen.codec}",
)
def test_rounds_move_the_bytes_of_their_formula(chosen):
    topology = replace(THREE, sync_ps=2 if sync.ALGORITHMS[chosen.algorithm].partner == sync.SYNC_PS else 0)
    formula = sync.ALGORITHMS[chosen.algorithm].cost(chosen, topology, PARAMETERS).sent
    found = over_threads(topology, rounds, chosen)[:3]
    assert sum(done for _, done in found) == (4 if chosen.algorithm == "gossip" else 3) * ROUNDS
    for link in Link:
        sizes = np.array([counted[f"bytes_{link.name.lower()}"] for counted, _ in found])
        expected = np.array([done for _, done in found]) * formula.get(link, 0.0)
        np.testing.assert_allclose(sizes, expected, rtol=1e-12)


def test_no_algorithm_is_left_out():
    """One that moves nothing says so; the steps of the synchronous one are counted below."""
    nothing = [n for n, kind in sync.ALGORITHMS.items() if not kind.cost(options("none"), THREE, PARAMETERS).sent]
    assert nothing == [name for name, kind in sync.ALGORITHMS.items() if not (kind.partner or kind.in_the_step)]


@pytest.mark.parametrize("algorithm", ["easgd", "ma", "bmuf"])
def test_rounds_in_memory_of_a_host_move_nothing(algorithm):
    topology = replace(THREE, sync_ps=1 if algorithm == "easgd" else 0)
    for counted, _ in over_threads(topology, rounds, options(algorithm))[:3]:
        assert counted["bytes_center_push"] == counted["bytes_center_pull"] == counted["messages_center_push"] == 0
        assert counted["bytes_trainers"] == 0


def test_hosts_meet_once_for_all_their_trainers(monkeypatch):
    """Two of three trainers share a host: an all-reduce of two."""
    monkeypatch.setitem(HOSTS, 2, "another")
    found = [
        counted["bytes_trainers"] for counted, _ in over_threads(replace(THREE, sync_ps=0), rounds, options("ma"))[:3]
    ]
    alone = reduced_bytes(4 * (PARAMETERS + 1), 2) * ROUNDS
    assert found == [pytest.approx(alone), 0.0, pytest.approx(alone)]


# Steps that are synchronous


class Rows(ThreadModel):
    """A batch with some rows of one PS."""

    rows = np.arange(7, dtype=np.int32)
    starts = np.array([0, 7])
    all_mapped = False


class NoTables:
    """Takes updates."""

    def update(self, lookup, gradients, factor, thread):
        """Nobody looks."""

    def drain(self):
        """Nothing is on its way."""


def steps(world, options):
    """``ROUNDS`` steps with seven rows each, of which a trainer keeps those that are its own to update."""
    weights = replica(0)
    home = sync.LocalTrainer(rows=sync.RowAccess(NoTables(), 1, DIM))

    def work(synchronizers):
        own = synchronizers[0]
        optimizer = own.optimizer(0)
        world.traffic.on = True
        for _ in range(ROUNDS):
            model = Rows(weights, np.zeros_like(weights))
            own.push_rows(model, np.zeros((7, DIM), np.float32), 1.0, 0)
            optimizer.step(model, 1.0)
        world.traffic.on = False
        own.close()
        return counts(world), own.exchange.rounds

    return on_trainers(world, options, weights, work, home)


def test_a_synchronous_step_moves_the_bytes_of_its_formula():
    chosen, topology = options("synchronous", "fixed_rate"), replace(THREE, sync_ps=0)
    dense = sync.ALGORITHMS["synchronous"].cost(chosen, topology, PARAMETERS).sent[Link.TRAINERS]
    for rank, (counted, done) in enumerate(over_threads(topology, steps, chosen)[:3]):
        to_others = 7 - len([row for row in range(7) if row % 3 == rank])
        expected = ROUNDS * (dense + row_gradient_bytes(to_others, DIM))
        assert counted["bytes_trainers"] == pytest.approx(expected, rel=1e-12)
        assert done == ROUNDS


# Embedding rows


def lookups(world, options):
    """Pulls and pushes; what they have moved, and the distinct rows and messages that they were."""

    def work(transport, placement):
        own, rows, messages = Lookups(transport, thread=0), 0, 0
        world.traffic.on = True
        for step in range(ROUNDS):
            ids, gradients = batch_of(world.rank, step)
            lookup = own.pull(ids)
            rows, messages = rows + lookup.unique_count, messages + sum(p.stop > p.start for p in lookup.parts)
            own.push(lookup, gradients)
        world.traffic.on = False
        transport.drain()
        return counts(world), rows, messages

    return with_tables(world, options, work)


@pytest.mark.parametrize("chosen", [SGD, ADAGRAD], ids=["sgd", "adagrad"])
@pytest.mark.parametrize("servers", [1, 3])
def test_rows_move_the_bytes_of_their_formula(servers, chosen):
    for counted, rows, messages in over_threads(replace(REMOTE, embedding_ps=servers), lookups, chosen)[:2]:
        assert counted["bytes_embedding_pull"] == wire.pulled_bytes(messages, rows, DIM)
        assert counted["bytes_embedding_push"] == wire.pushed_bytes(messages, rows, DIM)
        assert counted["messages_embedding_pull"] == 2 * counted["messages_embedding_push"] == 2 * messages
        assert counted["rows_in_place"] == counted["bytes_control"] == 0


def test_rows_in_place_move_nothing():
    for counted, rows, _ in over_threads(
        REMOTE, lookups, replace(SGD, settings=replace(SGD.settings, shared_memory=True))
    )[:2]:
        assert counted["rows_in_place"] == 2 * rows
        assert sum(size for name, size in counted.items() if name.startswith(("bytes", "messages"))) == 0
