"""DCN v2 (Wang et al., arXiv 2008.13535), with the bottom MLP of MLPerf's DLRM-DCNv2; stacked::

clicked?                      logit (batch,)
                                 |
deep                       top MLP  512-256-1
                                 |
cross             x' = x_0 * (W x + b) + x,  3 times; W of full rank, or U V
                                 |
                 x_0 = [ bottom output | rows ]  (batch, 27 * 16)
                      |                          |
dense arch      bottom MLP 512-256-64-16    rows (batch, 26, 16)  <- pulled
                      |                          |
                dense (batch, 13)          ids (batch, 26)

In parallel, the hidden layers of the top MLP read x_0, too, and the logit reads their output beside that of the cross
layers. Without dense features there is no bottom MLP, and x_0 is the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from ssmpi.model.network import ROWS, Concat, Inputs, Linear, Network, Operator, cross, mlp
from ssmpi.model.networks.dlrm import bottom_mlp
from ssmpi.model.options import ModelOptions


def dcn_v2(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``model.bottom``, ``[model.dcn_v2]`` and ``model.top``."""
    bottom = bottom_mlp(options, inputs)
    start = Concat("start", (*(last.name for last in bottom[-1:]), ROWS))
    width = bool(bottom) * options.bottom[-1] + inputs.tables * inputs.dim
    crossed = cross("cross", start.name, width, options.dcn_v2.layers, options.dcn_v2.rank)
    structure = options.dcn_v2.structure
    return Network(
        (*bottom, start, *crossed, *head("top", structure, start, crossed, options.top[:-1], options.dropout)), inputs
    )


def head(
    name: str, structure: str, start: Operator, crossed: Sequence[Operator], hidden: Sequence[int], dropout: float
) -> list[Operator]:
    """An MLP with these ``hidden`` layers up to the logit: behind the ``crossed`` operators, or beside them."""
    if structure == "stacked":
        return mlp(name, crossed[-1].name, (*hidden, 1), last="none", dropout=dropout)
    deep = mlp(name, start.name, hidden, dropout=dropout)
    both = Concat("both", (crossed[-1].name, *(last.name for last in deep[-1:])))
    return [*deep, both, Linear("logit", (both.name,), 1)]
