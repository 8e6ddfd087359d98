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
divided by the number of towers. Without dense features each top tower reads its share of the rows and dot products.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ssmpi.model.dlrm import check_bottom, interaction
from ssmpi.model.field_operators import Sum
from ssmpi.model.network import DENSE, Concat, Inputs, Network, Operator, Slice, mlp
from ssmpi.model.options import ModelOptions
from ssmpi.runtime.settings import require


def dlrm_towers(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``model.bottom``, ``model.top`` and ``model.dlrm_towers``."""
    check_bottom(options, inputs)
    towers, hidden, vectors = options.dlrm_towers.towers, options.top[:-1], inputs.tables + bool(inputs.dense)
    width = (1 if inputs.dense else inputs.tables) * inputs.dim + vectors * (vectors - 1) // 2
    narrow = min((*(options.bottom if inputs.dense else ()), width, *hidden))
    require(narrow >= towers, f"model.dlrm_towers.towers = {towers} divides every layer, and one has {narrow} outputs")
    bottom = _bottom(options, towers) if inputs.dense else []
    pairs = interaction(bottom, inputs)
    ends = [share * width // towers for share in range(towers + 1)]
    slices = [Slice(f"pairs.{k}", (pairs[-1].name,), ends[k], ends[k + 1] - ends[k]) for k in range(towers)]
    tops = [
        mlp(f"tower{k}.top", each.name, (*_shares(hidden, k, towers), 1), last="none") for k, each in enumerate(slices)
    ]
    logit = Sum("logit", tuple(layers[-1].name for layers in tops))
    return Network((*bottom, *pairs, *slices, *chain(*tops), logit), inputs)


def _bottom(options: ModelOptions, towers: int) -> list[Operator]:
    """The bottom towers, and their outputs side by side."""
    layers = [mlp(f"tower{k}.bottom", DENSE, _shares(options.bottom, k, towers)) for k in range(towers)]
    return [*chain(*layers), Concat("bottom", tuple(each[-1].name for each in layers))]


def _shares(widths: Sequence[int], tower: int, towers: int) -> tuple[int, ...]:
    """A tower's outputs of each layer."""
    return tuple((tower + 1) * width // towers - tower * width // towers for width in widths)
