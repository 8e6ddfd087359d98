"""Options of embedding rows, as a run's settings and its network make them; what stands in for a PS's service and for
the transport to PSs of this process.
"""

import numpy as np

from ssmpi.embedding.table import EmbeddingOptions, RowOptions
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


def push_to(arenas, lookup, gradients, factor):
    """Update the rows of a lookup as a transport does: at once if all are mapped, else by the sums of messages."""
    if lookup.all_mapped:
        lookup.push(gradients, arenas[0].options.optimizer.numbers, factor)
        return
    summed = lookup.summed(gradients)
    for arena, part in zip(arenas, lookup.parts, strict=True):
        rows = lookup.rows[part]
        arena.check(rows)
        assert len(np.unique(rows)) == len(rows), "each is updated once"
        arena.update(rows, summed[part], factor)
