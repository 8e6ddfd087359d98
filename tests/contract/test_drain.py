"""A trainer comes to rest when its pushes have been applied, in whatever order its threads' messages arrive."""

import time
from dataclasses import replace

import numpy as np
import pytest
from embedding_bodies import CARDINALITIES, DIM, REMOTE, SEED, SGD, train_at_once
from ranks import over_threads
from rows import Replies
from test_embedding import check_sum_of_all

from ssmpi.embedding import wire
from ssmpi.embedding.placement import place
from ssmpi.embedding.server import EmbeddingServer
from ssmpi.embedding.shards import LocalShard, Tables, local_tables
from ssmpi.embedding.table import Arena
from ssmpi.runtime.mpi.service import THREADS, request_tag


@pytest.fixture
def server():
    replies = Replies()
    server = EmbeddingServer(Arena(SGD, place(CARDINALITIES, 1), 0, SEED), replies)

    def send(source, thread, kind, payload):
        server.handle(source, request_tag(kind, thread), payload.view(np.uint8))
        return [(dest, tag) for dest, tag, _ in replies.sent]

    return send


def push(server, source, thread):
    message = wire.push(1.0, np.array([3], np.int32), np.ones((1, DIM), np.float32))
    return server(source, thread, wire.PUSH, message)


def drain(server, source, sent):
    return server(source, THREADS - 1, wire.DRAIN, np.array([sent], np.int64))


def test_a_drain_that_overtakes_pushes_waits_for_them(server):
    push(server, 0, 0)
    assert drain(server, 0, 3) == []
    assert push(server, 0, 1) == []
    assert push(server, 1, 0) == []  # another trainer's
    assert drain(server, 1, 1) == [(1, THREADS - 1)]
    assert push(server, 0, 0) == [(1, THREADS - 1), (0, THREADS - 1)]
    assert len(push(server, 0, 0)) == 2  # it is answered once


def test_a_drain_takes_no_reply_of_another_thread(monkeypatch):
    """A worker of a synchronous run drains while the main thread polls whether a checkpoint is written."""
    threads = {}

    def send(shard, kind, payload, reply, thread=THREADS - 1):
        threads[kind], reply[:] = thread, 0
        return []

    monkeypatch.setattr(LocalShard, "send", send)
    tables = local_tables(Arena(SGD, place(CARDINALITIES, 1), 0, SEED))
    tables.drain()
    tables.saved()
    tables.exchange_status(0)
    assert threads.keys() == {wire.DRAIN, wire.SAVED, wire.SAMPLES}
    assert len(set(threads.values())) == 3


def test_who_comes_to_rest_waits_for_pushes_that_come_after_the_drain(monkeypatch):
    """Here every push does: messages of worker threads, and the drain is the main thread's."""
    handle, drain, held, missed = EmbeddingServer.handle, Tables.drain, [], []

    def late(server, source, tag, payload):
        kind = tag // THREADS
        if kind == wire.PUSH:
            held.append((server, source, tag, payload.copy()))
            return
        handle(server, source, tag, payload)
        if kind == wire.DRAIN:
            time.sleep(0.05)  # an answer that was sent has arrived
            for message in [message for message in held if message[:2] == (server, source)]:
                handle(*message)
                held[:] = [other for other in held if other is not message]

    def drained(tables):
        drain(tables)
        missed.extend(message for message in held if message[1] == tables.shards[0]._conversation.rank)

    monkeypatch.setattr(EmbeddingServer, "handle", late)
    monkeypatch.setattr(Tables, "drain", drained)
    check_sum_of_all(over_threads(replace(REMOTE, embedding_ps=1), train_at_once, SGD)[:2], SGD)
    assert not missed
