"""MaskNet (Wang, She, Zhang, DLP-KDD 2021, arXiv 2102.07619), serial::

    clicked?                        logit (batch,)
                                          |
    mask block, 3 times      relu(LayerNorm(W (mask * x)))  400
                                |                  |
                     mask = MLP of the fields      x: of the first block, LayerNorm of each field
                                |                  |
                   fields [ x_i v_i | vectors ] (batch, 39, 16)

In parallel all blocks read the normalized fields, and an MLP reads their outputs. The hidden layer of a mask is
``ratio`` times as wide as the mask. Fields are DeepFM's; sizes are the paper's.
"""

from __future__ import annotations

from ssmpi.model.network import (
    Activation,
    Concat,
    Inputs,
    LayerNorm,
    Linear,
    Network,
    Operator,
    Product,
    dropped,
    mlp,
)
from ssmpi.model.networks.deepfm import fields, fields_width
from ssmpi.model.options import ModelOptions


def masknet(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``[model.masknet]``."""
    sizes, vectors, serial = options.masknet, fields(inputs), options.masknet.structure == "serial"
    normal = LayerNorm("normal", (vectors[-1].name,), inputs.dim)
    operators, ends, x, width = [*vectors, normal], list[str](), normal.name, fields_width(inputs)
    for number, outputs in enumerate(sizes.blocks):
        block = _block(f"block.{number}", (vectors[-1].name, x), width, outputs, options)
        operators, ends = [*operators, *block], [*ends, block[-1].name]
        if serial:
            x, width = block[-1].name, outputs
    if serial:
        return Network((*operators, Linear("logit", (x,), 1)), inputs)
    both = Concat("blocks", tuple(ends))
    deep = mlp("deep", both.name, (*sizes.deep, 1), last="none", dropout=options.dropout)
    return Network((*operators, both, *deep), inputs)


def _block(name: str, sources: tuple[str, str], width: int, outputs: int, options: ModelOptions) -> list[Operator]:
    """A mask, from the first of the ``sources``, for the second one, ``width`` wide; W; what follows it."""
    mask = mlp(f"{name}.mask", sources[0], (max(1, int(options.masknet.ratio * width)), width), last="none")
    masked = Product(f"{name}.masked", (mask[-1].name, sources[1]))
    linear = Linear(f"{name}.linear", (masked.name,), outputs, bias=False)
    normal = LayerNorm(f"{name}.normal", (linear.name,))
    return [*mask, masked, linear, normal, Activation(name, (normal.name,), "relu"), *dropped(name, options.dropout)]
