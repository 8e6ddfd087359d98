"""A factorization machine beside an MLP, over the rows alone."""

from ssmpi.model.field_operators import FactorizationMachine, Sum
from ssmpi.model.network import ROWS, Inputs, Network, mlp


def network(inputs: Inputs) -> Network:
    """The sum of both."""
    pairs = FactorizationMachine("pairs", (ROWS,), inputs.dim)
    deep = mlp("deep", ROWS, [64, 32, 1], last="none")
    return Network((pairs, *deep, Sum("logit", (pairs.name, deep[-1].name))), inputs)
