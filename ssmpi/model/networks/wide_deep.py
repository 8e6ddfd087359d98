"""Wide & Deep (Cheng et al., DLRS 2016, arXiv 1606.07792)::

    clicked?                     logit (batch,)
                                       |
                                      sum
                 +---------------------+---------------------+
                 |                                           |
            first order                                  deep MLP
         w x + b + weights                             1024-512-256-1
             |        |                                |          |
           dense   weights                           dense     vectors
    (batch, 13)    (batch, 26)                (batch, 13)     (batch, 26, 16)

The wide part is a logistic regression over single features: products of features that the paper's has as well have to
be features of the data.
"""

from __future__ import annotations

from ssmpi.model.field_operators import Sum
from ssmpi.model.network import DENSE, ROWS, Concat, Inputs, Network, mlp
from ssmpi.model.networks.logistic import first_order
from ssmpi.model.options import ModelOptions


def wide_deep(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``[model.wide_deep]``."""
    wide, start = first_order("wide", inputs), Concat("start", (*[DENSE] * bool(inputs.dense), ROWS))
    deep = mlp("deep", start.name, (*options.wide_deep.deep, 1), last="none", dropout=options.dropout)
    return Network((wide, start, *deep, Sum("logit", (wide.name, deep[-1].name))), inputs)
