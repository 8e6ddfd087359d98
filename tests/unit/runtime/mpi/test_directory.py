"""Who is asked for what stands in a conversation's directory, in whatever order its ranks come."""

from types import SimpleNamespace

import numpy as np
from rows import row_options

from ssmpi.embedding.placement import place
from ssmpi.embedding.shards import remote_tables
from ssmpi.runtime.mpi.waiting import WaitOptions
from ssmpi.runtime.topology import Directory, Role
from ssmpi.runtime.traffic import Traffic, meter
from ssmpi.sync.round_context import RoundContext

SERVERS_FIRST = ((1, 0), (0, 1))  # index of each server, of each trainer


class Posts:
    """A conversation in which everything that is sent arrives at once; ``sent`` is to whom."""

    def __init__(self, role):
        servers, trainers = SERVERS_FIRST
        members = (*((role, index) for index in servers), *((Role.TRAINER, index) for index in trainers))
        self.directory, self.sent = Directory(members), []
        self.names, self.rank, self.size = self.directory.names, 2, len(members)
        self.meter = meter(Traffic(), "embedding")

    def isend(self, array, dest, tag, link=None):
        self.sent.append(dest)
        return SimpleNamespace(Test=lambda: True)

    def irecv(self, array, source, tag, link=None):
        return SimpleNamespace(Test=lambda: True)


def test_embedding_ps_are_asked_by_their_index():
    posts = Posts(Role.EMBEDDING_PS)
    tables = remote_tables(posts, place((40, 30), 2), row_options(shared_memory=False), WaitOptions())
    tables.goodbye()
    tables.drain()
    assert posts.sent == [1, 0, 1, 0]


def test_sync_ps_are_those_of_the_directory():
    posts = Posts(Role.SYNC_PS)
    assert RoundContext(posts, posts, WaitOptions()).sync_ps == (1, 0)
    np.testing.assert_array_equal(posts.directory.ranks_of(Role.TRAINER), (2, 3))
