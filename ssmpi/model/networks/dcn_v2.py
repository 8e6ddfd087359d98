"""DCN v2 (Wang et al., arXiv 2008.13535), stacked, with the bottom MLP of MLPerf's DLRM-DCNv2::

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

Without dense features there is no bottom MLP, and x_0 is the rows.
"""

from __future__ import annotations

from ssmpi.model.network import ROWS, Concat, Inputs, Network, cross, mlp
from ssmpi.model.networks.dlrm import bottom_mlp
from ssmpi.model.options import ModelOptions


def dcn_v2(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``model.bottom``, ``[model.dcn_v2]`` and ``model.top``."""
    bottom = bottom_mlp(options, inputs)
    start = Concat("start", (*(last.name for last in bottom[-1:]), ROWS))
    width = bool(bottom) * options.bottom[-1] + inputs.tables * inputs.dim
    crossed = cross("cross", start.name, width, options.dcn_v2.layers, options.dcn_v2.rank)
    return Network((*bottom, start, *crossed, *mlp("top", crossed[-1].name, options.top, last="none")), inputs)
