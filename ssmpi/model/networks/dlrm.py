"""DLRM (Naumov et al., arXiv 1906.00091) without its tables, which the embedding PSs hold::

    clicked?                      logit (batch,)
                                     |
    over arch                  top MLP  512-256-1
                                     |
                     [ bottom output | pairwise dot products ]
    interaction                      |
                     dots of 1 + 26 vectors, lower triangle without the diagonal
                          |                          |
    dense arch      bottom MLP 512-256-64-16    rows (batch, 26, 16)  <- pulled
                          |                          |
                    dense (batch, 13)          ids (batch, 26)

Layers, initial values and interaction are those of facebookresearch/dlrm (dot interaction, no self terms).

Without dense features there is no bottom MLP, and the top MLP reads all rows and their dot products, as in a
product-based network (Qu et al., arXiv 1611.00144): two tables have a single dot product.
"""

from __future__ import annotations

from collections.abc import Sequence

from ssmpi.model.network import DENSE, ROWS, Concat, DotInteraction, Inputs, Network, Operator, Slice, mlp
from ssmpi.model.options import ModelOptions
from ssmpi.runtime.settings import require


def dlrm(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``model.bottom`` and ``model.top``."""
    check_bottom(options, inputs)
    bottom = bottom_mlp(options, inputs)
    pairs = interaction(bottom, inputs)
    top = mlp("top", pairs[-1].name, options.top, last="none", dropout=options.dropout)
    return Network((*bottom, *pairs, *top), inputs)


def bottom_mlp(options: ModelOptions, inputs: Inputs) -> list[Operator]:
    """The MLP over the dense features; empty without dense features."""
    return mlp("bottom", DENSE, options.bottom) if inputs.dense else []


def interaction(bottom: Sequence[Operator], inputs: Inputs) -> list[Operator]:
    """The dot products, behind the output of ``bottom`` if it is not empty, or else with all rows. The last operator
    has the result.
    """
    if bottom:
        return [DotInteraction("pairs", (bottom[-1].name, ROWS), inputs.tables)]
    if inputs.tables == 1:
        return [Concat("pairs", (ROWS,))]
    first = Slice("first_row", (ROWS,), 0, inputs.dim)
    others = Slice("other_rows", (ROWS,), inputs.dim, (inputs.tables - 1) * inputs.dim)
    pairs = DotInteraction("pairs", (first.name, others.name), inputs.tables - 1)
    return [first, others, pairs, Concat("rows_and_pairs", (pairs.name, others.name))]


def check_bottom(options: ModelOptions, inputs: Inputs) -> None:
    """SettingsError unless the bottom MLP's output, if there is one, can be multiplied with rows."""
    require(
        not inputs.dense or options.bottom[-1] == inputs.dim,
        f"model.bottom ends in {options.bottom[-1]}, but embedding.dim = {inputs.dim}: they are multiplied with each "
        "other and must be equal",
    )
