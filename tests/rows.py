"""Options of embedding rows, as a run's settings and its network make them; what stands in for a PS's service; tables
on PSs of this process.
"""

from types import SimpleNamespace

import numpy as np

from ssmpi.embedding.shards import LocalShard, Tables
from ssmpi.embedding.table import EmbeddingOptions, RowOptions
from ssmpi.embedding.trackers import NOTHING
from ssmpi.runtime.row_layout import RowLayout


def row_options(dim=16, *, weight=False, **settings):
    """Rows of a vector, unless ``dim`` is 0, and, with ``weight``, a first-order weight."""
    return RowOptions(EmbeddingOptions(**({"dim": dim} if dim else {}), **settings), RowLayout(dim, weight))


class Replies:
    """The service of a PS that keeps what it would send: (trainer, tag, content)."""

    def __init__(self):
        self.sent = []

    def buffer(self, size):
        return np.empty(size, np.uint8)

    def reply(self, dest, tag, buffer):
        self.sent.append((dest, tag, buffer))


class LateShard(LocalShard):
    """Rows of a PS of this process, whose replies arrive when they are waited for. ``messages`` has the kind, the
    payload and the reply, if there is one, of each message.
    """

    def __init__(self, arena, **how):
        super().__init__(arena, **how)
        self.messages = []

    def send(self, kind, payload, reply, *whose):
        answer = None if reply is None else np.empty_like(reply)
        super().send(kind, payload, answer, *whose)
        self.messages.append((kind, payload.copy(), answer))
        return [] if reply is None else [SimpleNamespace(Test=lambda: np.copyto(reply, answer) or True)]


def tables_of(arenas, mapped, tracking=NOTHING):
    """Tables on PSs of this process: those whose numbers are in ``mapped`` are mapped, messages reach the others."""
    shards = [LateShard(arena, mapped=k in mapped, tracking=tracking) for k, arena in enumerate(arenas)]
    return Tables(shards, arenas[0].placement, arenas[0].options, tracking=tracking)
