"""DeepFM (Guo et al., IJCAI 2017)::

    clicked?                            logit (batch,)
                                           |
                                          sum
                   ________________________|________________________
                  |                        |                        |
    FM       first order           pairwise products           deep MLP  400-400-400-1
                  |                        |________________________|
                  |                                    |
                  |                      fields: 13 + 26 vectors of 16, shared
             _____|_____                       ________|________
            |           |                     |                 |
          w, b     row weights            x_i v_i          row vectors (batch, 26, 16)  <- pulled
            |       <- pulled                 |                 |
    dense (batch, 13)  |              dense (batch, 13)         |
                       ids (batch, 26) _________________________|

Dense features are fields as the paper has them: their value times a vector and a weight of their own. No dropout.
"""

from __future__ import annotations

from ssmpi.model.field_operators import FactorizationMachine, FieldVectors, FirstOrder, Sum
from ssmpi.model.network import DENSE, ROWS, WEIGHTS, Concat, Inputs, Network, mlp
from ssmpi.model.options import ModelOptions


def deepfm(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``[model.deepfm]``."""
    first = FirstOrder("first", (DENSE, WEIGHTS))
    vectors = FieldVectors("vectors", (DENSE,), inputs.dim)
    fields = Concat("fields", (vectors.name, ROWS))
    pairs = FactorizationMachine("pairs", (fields.name,), inputs.dim)
    deep = mlp("deep", fields.name, (*options.deepfm.deep, 1), last="none")
    logit = Sum("logit", (first.name, pairs.name, deep[-1].name))
    return Network((first, vectors, fields, pairs, *deep, logit), inputs)
