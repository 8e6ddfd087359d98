"""Accesses are counted where rows are updated: on the PS, or by its trainers in the memory that they have mapped."""

from dataclasses import replace

import pytest
from embedding_bodies import CARDINALITIES, REMOTE
from rank_pool import over_mpi
from ranks import over_threads
from tracking_bodies import count, counts_of

from ssmpi.embedding.placement import place

SHARED = (False, True)


def check(results, servers):
    found = results[REMOTE.trainers :]
    assert [counts for counts, _ in found] == counts_of(place(CARDINALITIES, servers), REMOTE.trainers)
    assert [samples for _, samples in found] == [4000] * servers
    assert results[0] == [(server, 4000) for server in range(servers)]


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("shared", SHARED)
def test_every_lookup_is_counted_over_threads(shared, servers):
    check(over_threads(replace(REMOTE, embedding_ps=servers), count, shared), servers)


def test_every_lookup_is_counted_over_mpi():
    for shared in SHARED:
        check(over_mpi(REMOTE, count, shared), REMOTE.embedding_ps)
