"""Logistic regression, a cheap baseline: rows are one float wide::

clicked?                   logit (batch,)
                              |
              w x + b + the sum of the row weights
                  |                          |
          dense (batch, 13)     row weights (batch, 26)  <- pulled
"""

from __future__ import annotations

from ssmpi.model.field_operators import FirstOrder
from ssmpi.model.network import DENSE, WEIGHTS, Inputs, Network
from ssmpi.model.options import ModelOptions


def logistic(options: ModelOptions, inputs: Inputs) -> Network:
    """It has no settings."""
    return Network((first_order("logit", inputs),), inputs)


def first_order(name: str, inputs: Inputs) -> FirstOrder:
    """Of the dense features, if there are any, and the weights of the rows."""
    return FirstOrder(name, (DENSE, WEIGHTS) if inputs.dense else (WEIGHTS,))
