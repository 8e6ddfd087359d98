"""GDCN (Wang et al., Towards Deeper, Lighter and Interpretable Cross Network, CIKM 2023, arXiv 2311.04635)::

    clicked?                     logit (batch,)
                                       |
                 +---------------------+---------------------+
                 |                                           |
    x' = x_0 * (W x + b) * sigmoid(V x) + x,  3 times     MLP  400-400-400
                 |                                           |
                 +---------------------+---------------------+
                                       |
              x_0 = fields [ x_i v_i | vectors ] (batch, 39, 16)

That is GDCN-P; in GDCN-S the MLP reads the output of the cross layers. Fields are DeepFM's; sizes are the defaults of
the authors' code.
"""

from __future__ import annotations

from collections.abc import Iterator

from ssmpi.model.network import Gate, Inputs, Linear, Network, Operator, Product
from ssmpi.model.networks.dcn_v2 import head
from ssmpi.model.networks.deepfm import fields, fields_width
from ssmpi.model.options import ModelOptions


def gdcn(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``[model.gdcn]``."""
    sizes, vectors = options.gdcn, fields(inputs)
    crossed = list(_gated_cross(vectors[-1].name, fields_width(inputs), sizes.layers))
    last = head("deep", sizes.structure, vectors[-1], crossed, sizes.deep, options.dropout)
    return Network((*vectors, *crossed, *last), inputs)


def _gated_cross(source: str, width: int, layers: int) -> Iterator[Operator]:
    x = source
    for layer in range(layers):
        name = f"cross.{layer}"
        yield Linear(f"{name}.w", (x,), width)
        yield Linear(f"{name}.gate", (x,), width, "sigmoid", bias=False)
        yield Product(f"{name}.update", (f"{name}.w", f"{name}.gate"))
        yield Gate(name, (source, f"{name}.update", x))
        x = name
