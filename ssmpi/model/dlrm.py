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
"""

from __future__ import annotations

from ssmpi.core.settings import require
from ssmpi.model.network import DENSE, ROWS, DotInteraction, Inputs, Network, mlp
from ssmpi.model.options import ModelOptions


def dlrm(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``model.bottom`` and ``model.top``."""
    check_bottom(options, inputs)
    bottom = mlp("bottom", DENSE, options.bottom)
    pairs = DotInteraction("pairs", (bottom[-1].name, ROWS), inputs.tables)
    return Network((*bottom, pairs, *mlp("top", pairs.name, options.top, last="none")), inputs)


def check_bottom(options: ModelOptions, inputs: Inputs) -> None:
    """SettingsError unless the bottom MLP's output can be multiplied with rows."""
    require(
        options.bottom[-1] == inputs.dim,
        f"model.bottom ends in {options.bottom[-1]}, but embedding.dim = {inputs.dim}: they are multiplied with each "
        "other and must be equal",
    )
