"""DeepFM (Guo et al., IJCAI 2017)::

    clicked?                     logit (batch,)
                                       |
                                      sum
                 +---------------------+---------------------+
                 |                     |                     |
            first order          factorization            deep MLP
         w x + b + weights          machine            400-400-400-1
             |        |                |                     |
             |        |                +----------+----------+
             |        |                           |
             |        |          fields [ x_i v_i | vectors ] (batch, 39, 16)
             |        |                     |          |
           dense   weights                dense     vectors
    (batch, 13)    (batch, 26)      (batch, 13)     (batch, 26, 16)
                      |                                |
                      +-- rows (batch, 26, 17) <- pulled
                                 ids (batch, 26)

A dense feature is a field as the paper has it: its value times a weight and a vector, which are dense parameters.
Without dense features the fields are the ids alone. A factorization machine adds up the products of all pairs of
fields, so rows begin small, and the more fields there are the smaller their steps: ``ssmpi.choices``.
"""

from __future__ import annotations

from ssmpi.model.field_operators import FactorizationMachine, FieldVectors, Sum
from ssmpi.model.network import DENSE, ROWS, Concat, Inputs, Network, Operator, mlp
from ssmpi.model.networks.logistic import first_order
from ssmpi.model.options import ModelOptions


def deepfm(options: ModelOptions, inputs: Inputs) -> Network:
    """The network of ``[model.deepfm]``."""
    first = first_order("first", inputs)
    vectors = fields(inputs)
    pairs = FactorizationMachine("pairs", (vectors[-1].name,), inputs.dim)
    deep = mlp("deep", vectors[-1].name, (*options.deepfm.deep, 1), last="none", dropout=options.dropout)
    logit = Sum("logit", (first.name, pairs.name, deep[-1].name))
    return Network((first, *vectors, pairs, *deep, logit), inputs)


def fields(inputs: Inputs) -> list[Operator]:
    """The last operator has the vectors of all fields: x_i v_i of dense features, those of the rows."""
    vectors = [FieldVectors("vectors", (DENSE,), inputs.dim)] if inputs.dense else []
    return [*vectors, Concat("fields", (*(each.name for each in vectors), ROWS))]


def fields_width(inputs: Inputs) -> int:
    """Floats per example of all fields."""
    return (inputs.dense + inputs.tables) * inputs.dim
