"""DLRM whose MLPs are block-diagonal, for groups: of towers, one for each member, which meet only in the interaction
and in the logit, so that few values go from one to another::

    clicked?                                logit (batch,)
                                               | sum
    over arch             tower0.top  256-128-1      tower1.top  256-128-1
                               |                          |
                     the first half             the second half
                               [ bottom | pairwise dot products ]
    interaction                                |
                                       [ 8 of each tower ]              rows (batch, 26, 16)  <- pulled
                               |                          |
    dense arch      tower0.bottom  256-128-32-8    tower1.bottom  256-128-32-8
                               |                          |
                               dense (batch, 13) for each

The first layers of the bottom towers read all dense features. The rest of a layer's products are those of ``dlrm``'s
divided by the number of towers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ssmpi.core.settings import require
from ssmpi.model.dlrm import check_bottom
from ssmpi.model.field_operators import Sum
from ssmpi.model.network import DENSE, ROWS, Concat, DotInteraction, Inputs, Network, Slice, mlp
from ssmpi.model.options import ModelOptions


def dlrm_towers(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``model.bottom``, ``model.top`` and ``model.dlrm_towers``."""
    check_bottom(options, inputs)
    towers, hidden = options.dlrm_towers.towers, options.top[:-1]
    narrow = min((*options.bottom, *hidden))
    require(narrow >= towers, f"model.dlrm_towers.towers = {towers} divides every layer, and one has {narrow} outputs")
    bottoms = [mlp(f"tower{k}.bottom", DENSE, _shares(options.bottom, k, towers)) for k in range(towers)]
    bottom = Concat("bottom", tuple(layers[-1].name for layers in bottoms))
    pairs = DotInteraction("pairs", (bottom.name, ROWS), inputs.tables)
    ends = [share * pairs.form(inputs.dim, inputs.tables * inputs.dim).width // towers for share in range(towers + 1)]
    slices = [Slice(f"pairs.{k}", (pairs.name,), ends[k], ends[k + 1] - ends[k]) for k in range(towers)]
    tops = [
        mlp(f"tower{k}.top", each.name, (*_shares(hidden, k, towers), 1), last="none") for k, each in enumerate(slices)
    ]
    logit = Sum("logit", tuple(layers[-1].name for layers in tops))
    return Network((*chain(*bottoms), bottom, pairs, *slices, *chain(*tops), logit), inputs)


def _shares(widths: Sequence[int], tower: int, towers: int) -> tuple[int, ...]:
    """A tower's outputs of each layer."""
    return tuple((tower + 1) * width // towers - tower * width // towers for width in widths)
