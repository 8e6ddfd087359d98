"""FinalMLP (Mao et al., AAAI 2023, arXiv 2304.00902)::

    clicked?                     logit (batch,)
                                       |
    bilinear fusion        b + u x + v y + x' W y,  W in blocks, one for each head
                               |                |
                         x = MLP  400-400-400   y = MLP  1000
                               |                |
                            fields [ x_i v_i | vectors ] (batch, 39, 16)

Fields are DeepFM's. The sizes are those of the best log of BARS on Criteo_x1 (which has 200 heads), one head is the
default of FuxiCTR. There are no feature gates: they read features that are chosen by hand for each data set.
"""

from __future__ import annotations

from collections.abc import Iterator

from ssmpi.model.field_operators import FactorizationMachine, Sum
from ssmpi.model.network import Concat, Inputs, Linear, Network, Operator, Slice, mlp
from ssmpi.model.networks.deepfm import fields
from ssmpi.model.options import ModelOptions


def finalmlp(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``[model.finalmlp]``."""
    sizes, vectors = options.finalmlp, fields(inputs)
    streams = [
        mlp(name, vectors[-1].name, widths, dropout=options.dropout)
        for name, widths in (("mlp1", sizes.mlp1), ("mlp2", sizes.mlp2))
    ]
    x, y = (stream[-1].name for stream in streams)
    linear = Linear("x", (x,), 1), Linear("y", (y,), 1, bias=False)
    products = _products(x, y, sizes.mlp1[-1] // sizes.heads, sizes.mlp2[-1] // sizes.heads, sizes.heads)
    logit = Sum("logit", ("x", "y", *(f"heads.{head}" for head in range(sizes.heads))))
    return Network((*vectors, *streams[0], *streams[1], *linear, *products, logit), inputs)


def _products(x: str, y: str, width: int, other: int, heads: int) -> Iterator[Operator]:
    """x' W y of each head: the dot product of W' x and y, a factorization machine of two vectors."""
    for head in range(heads):
        name = f"heads.{head}"
        yield Slice(f"{name}.x", (x,), head * width, width)
        yield Slice(f"{name}.y", (y,), head * other, other)
        yield Linear(f"{name}.w", (f"{name}.x",), other, bias=False)
        yield Concat(f"{name}.both", (f"{name}.w", f"{name}.y"))
        yield FactorizationMachine(name, (f"{name}.both",), other)
