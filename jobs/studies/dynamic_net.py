"""The network of dynamic.py: a factorization machine beside an MLP over user and item. The third feature, ``who``, is
the user again; it is not read, and only says whose rows a metric by group takes together.
"""

from ssmpi.model.field_operators import FactorizationMachine, Sum
from ssmpi.model.network import ROWS, Inputs, Network, mlp
from ssmpi.model.operators import Slice


def network(inputs: Inputs) -> Network:
    """The sum of both."""
    read = Slice("read", (ROWS,), first=0, columns=2 * inputs.dim)
    pairs = FactorizationMachine("pairs", (read.name,), inputs.dim)
    deep = mlp("deep", read.name, [64, 32, 1], last="none")
    return Network((read, pairs, *deep, Sum("logit", (pairs.name, deep[-1].name))), inputs)
