"""FinalNet (Zhu et al., FINAL: Factorized Interaction Layer, SIGIR 2023)::

    clicked?                     logit (batch,)
                              |                 |
    layer, twice each    relu(g + h * g), [ g | h ] = W x + b
                              |                 |
                           block 1           block 2
                              |                 |
                   fields [ x_i v_i | vectors ] (batch, 39, 16)

Fields are DeepFM's; sizes and ReLU those of the best log of BARS on Criteo_x1. The paper's logit is the mean of both
blocks' logits, whose half is taken into the weights here. Its second loss, by which each block learns from that mean,
the gates of fields and the batch normalization are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ssmpi.model.network import Activation, Concat, Gate, Inputs, Linear, Network, Operator, Slice, dropped
from ssmpi.model.networks.deepfm import fields
from ssmpi.model.options import ModelOptions


def finalnet(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``[model.finalnet]``."""
    sizes, vectors = options.finalnet, fields(inputs)
    blocks = [
        list(_block(name, vectors[-1].name, widths, options.dropout))
        for name, widths in (("block1", sizes.block1), ("block2", sizes.block2))
        if widths
    ]
    both = Concat("both", tuple(block[-1].name for block in blocks))
    layers = [operator for block in blocks for operator in block]
    return Network((*vectors, *layers, both, Linear("logit", (both.name,), 1)), inputs)


def _block(name: str, source: str, widths: Sequence[int], dropout: float) -> Iterator[Operator]:
    """Layers of factorized interactions."""
    for number, width in enumerate(widths):
        layer = f"{name}.{number}"
        yield Linear(f"{layer}.linear", (source,), 2 * width)
        yield Slice(f"{layer}.g", (f"{layer}.linear",), 0, width)
        yield Slice(f"{layer}.h", (f"{layer}.linear",), width, width)
        yield Gate(f"{layer}.product", (f"{layer}.h", f"{layer}.g", f"{layer}.g"))
        last: list[Operator] = [Activation(layer, (f"{layer}.product",), "relu"), *dropped(layer, dropout)]
        yield from last
        source = last[-1].name
