"""Options of embedding rows, as a run's settings and its network make them."""

from ssmpi.core.row_layout import RowLayout
from ssmpi.embedding.table import EmbeddingOptions, RowOptions


def row_options(dim=16, *, weight=False, **settings):
    """Rows of a vector, unless ``dim`` is 0, and, with ``weight``, a first-order weight."""
    return RowOptions(EmbeddingOptions(**({"dim": dim} if dim else {}), **settings), RowLayout(dim, weight))
