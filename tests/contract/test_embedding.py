"""Pull and push against plain tables, over threads and over MPI, for any number of embedding PSs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from embedding_bodies import (
    ADAGRAD,
    AT_ONCE,
    BATCH,
    CARDINALITIES,
    DIM,
    FEATURES,
    LOCAL,
    REMOTE,
    SEED,
    SGD,
    STEPS,
    WEIGHTED,
    WEIGHTS,
    batch_of,
    other,
    pull_bad_id,
    train_at_once,
    train_in_step,
    train_in_turn,
    whole_rows,
)
from oracle import RowwiseAdagrad, initial_tables
from rank_pool import over_mpi
from ranks import over_threads
from strength import one_at_a_time
from torch import nn

from ssmpi.embedding.placement import place
from ssmpi.runtime.errors import TrainingError


class PlainTable(nn.Module):
    """nn.EmbeddingBag over the vectors that training starts from, and another over the first-order weights, which are
    0: what of both a row has, side by side.
    """

    def __init__(self, vectors, layout):
        super().__init__()
        groups = [vectors] if layout.vector else []
        groups += [np.zeros((len(vectors), 1), np.float32)] if layout.weight else []
        self.groups = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(torch.from_numpy(values), freeze=False, mode="sum") for values in groups
        )

    def forward(self, *ids):
        return torch.cat([group(*ids) for group in self.groups], dim=1)

    @property
    def values(self):
        return torch.cat([group.weight for group in self.groups], dim=1).detach()


def plain_tables(options):
    return [PlainTable(vectors, options.layout) for vectors in initial_tables(SEED, CARDINALITIES, DIM)]


def plain_optimizer(tables, options):
    options, weights = options.settings, [parameter for table in tables for parameter in table.parameters()]
    if options.optimizer == "sgd":
        return torch.optim.SGD(weights, options.rate)
    return RowwiseAdagrad(weights, options.rate, options.epsilon, options.initial_state)


def check_against_plain(results, options):
    tables = plain_tables(options)
    optimizer = plain_optimizer(tables, options)
    for rank, (pulled, _) in enumerate(results):
        for step in range(STEPS):
            ids, gradients = batch_of(rank, step, width=options.layout.width)
            rows = torch.stack([t(torch.from_numpy(ids[:, f : f + 1])) for f, t in enumerate(tables)], dim=1)
            np.testing.assert_allclose(pulled[step], rows.detach(), rtol=2e-6, atol=2e-6)
            for table in tables:
                table.zero_grad()
            rows.backward(torch.from_numpy(gradients))
            optimizer.param_groups[0]["lr"] = options.settings.rate * (0.5 if step == 1 else 1.0)
            optimizer.step()
    for _, everything in results:
        for f, table in enumerate(tables):
            rows = everything[: CARDINALITIES[f], f]
            np.testing.assert_allclose(rows, table.values, rtol=2e-6, atol=2e-6)


def add_gradients(tables, rank, thread, options):
    """What ``train_at_once`` pushes on one thread."""
    for step in range(AT_ONCE):
        ids, gradients = batch_of(rank, thread, step)
        for count in (BATCH, 5):
            for f, table in enumerate(tables):
                np.subtract.at(table, ids[:count, f], options.settings.rate * gradients[:count, f].astype(float))


def check_sum_of_all(results, options):
    """With SGD the order of updates does not matter: every gradient of every thread counts exactly once."""
    tables = [table.astype(float) for table in initial_tables(SEED, CARDINALITIES, DIM)]
    for rank in range(len(results)):
        for thread in range(REMOTE.threads):
            add_gradients(tables, rank, thread, options)
    for everything in results:
        for f, table in enumerate(tables):
            np.testing.assert_allclose(everything[: len(table), f], table, rtol=2e-5, atol=2e-4)


def updates(trainers):
    """How often each row is updated by ``train_in_step``: at least and at most, by table.

    In place there is no server to take turns. Of threads that update one row in the same instant the last one's update
    stays in any case, those of the others may be lost; a row that one thread alone touches in a step loses nothing.
    """
    least, most = ([np.zeros(cardinality, int) for cardinality in CARDINALITIES] for _ in range(2))
    for step in range(AT_ONCE):
        for f, cardinality in enumerate(CARDINALITIES):
            each = np.array([
                np.bincount(whole_rows(rank, thread, step)[0][:, f], minlength=cardinality)
                for rank in range(trainers)
                for thread in range(REMOTE.threads)
            ])  # fmt: skip
            most[f] += each.sum(axis=0)
            least[f] += np.where(each > 0, each, each.max(axis=0)).min(axis=0)
    return least, most


def check_updates_in_place(results, options):
    least, most = updates(len(results))
    alone = [(a == b) & (b > 0) for a, b in zip(least, most, strict=True)]
    assert sum(map(np.sum, alone)) > 100, "rows that lose nothing"
    assert sum(np.sum(a < b) for a, b in zip(least, most, strict=True)) > 100, (
        "rows that several threads update at once"
    )
    for everything in results:
        for f, start in enumerate(initial_tables(SEED, CARDINALITIES, DIM)):
            found = (start - everything[: len(start), f].astype(float)) / options.settings.rate
            np.testing.assert_allclose(found, np.rint(found), rtol=0, atol=0.02, err_msg="updates are whole")
            assert np.all(np.rint(found) >= least[f][:, None])
            assert np.all(np.rint(found) <= most[f][:, None])


def check_every_update(results, options):
    """Where a server applies them, none is lost, whoever else updates the row."""
    _, most = updates(len(results))
    for everything in results:
        for f, start in enumerate(initial_tables(SEED, CARDINALITIES, DIM)):
            found = (start - everything[: len(start), f].astype(float)) / options.settings.rate
            np.testing.assert_allclose(found, np.repeat(most[f][:, None], DIM, 1), rtol=0, atol=0.02)


CASES = {
    "sgd": (train_in_turn, check_against_plain, (SGD,)),
    "rowwise_adagrad": (train_in_turn, check_against_plain, (ADAGRAD,)),
    "vectors and weights": (train_in_turn, check_against_plain, (WEIGHTED,)),
    "vectors and weights in place": (train_in_turn, check_against_plain, (other(WEIGHTED, shared_memory=True),)),
    "vectors and weights by sgd": (train_in_turn, check_against_plain, (other(WEIGHTED, optimizer="sgd"),)),
    "weights": (train_in_turn, check_against_plain, (WEIGHTS,)),
    "one push in flight": (train_in_turn, check_against_plain, (other(SGD, pushes_in_flight=1),)),
    "threads at once": (train_at_once, check_sum_of_all, (SGD,)),
    "sgd in place": (train_in_turn, check_against_plain, (other(SGD, shared_memory=True),)),
    "rowwise_adagrad in place": (train_in_turn, check_against_plain, (other(ADAGRAD, shared_memory=True),)),
    "threads at once in place": (train_in_step, check_updates_in_place, (other(SGD, rate=1.0, shared_memory=True),)),
    "threads at once in step": (train_in_step, check_every_update, (other(SGD, rate=1.0),)),
}


@pytest.mark.parametrize(("case", "servers"), one_at_a_time(list(CASES), [3, 1, 2, 5]))
def test_like_plain_tables_over_threads(case, servers):
    body, check, arguments = CASES[case]
    topology = replace(REMOTE, embedding_ps=servers)
    check(over_threads(topology, body, *arguments)[:2], *arguments)


@pytest.mark.parametrize("case", CASES)
def test_like_plain_tables_over_mpi(case):
    body, check, arguments = CASES[case]
    check(over_mpi(REMOTE, body, *arguments)[:2], *arguments)


LAYOUTS = {"sgd": SGD, "rowwise_adagrad": ADAGRAD, "vectors and weights": WEIGHTED}


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
def test_like_plain_tables_inside_the_trainer(options):
    check_against_plain(over_threads(LOCAL, train_in_turn, options), options)


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
def test_the_number_of_servers_changes_no_bit(options):
    reference = over_threads(REMOTE, train_in_turn, options)[0][1]
    for servers in (1, 3, 4):
        everything = over_threads(replace(REMOTE, embedding_ps=servers), train_in_turn, options)[0][1]
        np.testing.assert_array_equal(everything, reference)


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
def test_rows_at_hand_and_rows_by_message_are_the_same_bits(options):
    by_message = over_threads(REMOTE, train_in_turn, options)
    in_place = over_threads(REMOTE, train_in_turn, other(options, shared_memory=True))
    for (pulled, everything), (pulled_in_place, everything_in_place) in zip(by_message[:2], in_place[:2], strict=True):
        np.testing.assert_array_equal(pulled_in_place, pulled)
        np.testing.assert_array_equal(everything_in_place, everything)


def test_a_server_without_rows_is_within_reach(monkeypatch):
    """Its memory is empty: there is nothing to map, and nothing to fetch."""
    monkeypatch.setattr("embedding_bodies.CARDINALITIES", (1,) * FEATURES)
    one, more = (
        over_threads(replace(REMOTE, embedding_ps=servers), train_in_turn, other(SGD, shared_memory=True))[0]
        for servers in (1, FEATURES + 2)
    )
    for found, expected in zip(more, one, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_rows_of_another_host_are_sent(monkeypatch):
    """The test pretends that the PS's host has another name."""
    monkeypatch.setattr("ssmpi.runtime.mpi.shared_memory.SharedMemory.address", b'{"host": "elsewhere"}', raising=False)
    monkeypatch.setattr(
        "ssmpi.runtime.mpi.shared_memory.SharedMemory.allocate", lambda self, size, first=None: np.empty(size, np.uint8)
    )
    monkeypatch.setattr("embedding_bodies.IN_REACH", False)
    check_against_plain(over_threads(REMOTE, train_in_turn, other(SGD, shared_memory=True))[:2], SGD)


def test_tables_are_split_in_these_tests():
    assert set(place(CARDINALITIES, 2).strides) == {1, 2}


def test_an_id_beyond_its_table_is_refused_with_its_place():
    with pytest.raises(TrainingError, match=r"id 40 of feature C3 \(row 3 of its batch\).*table of 40 rows"):
        over_threads(REMOTE, pull_bad_id, SGD)
