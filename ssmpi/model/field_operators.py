"""Operators of factorization machines and the models around them, over fields: an id, with the vector and the weight of
its row, or a dense feature, with a vector and a weight among the dense parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from ssmpi.model.operators import Form, Operator, equal, exactly
from ssmpi.model.options import WIDEST
from ssmpi.runtime.settings import within


@dataclass(frozen=True)
class Sum(Operator):
    """All inputs added, elementwise."""

    def form(self, *widths: int) -> Form:
        """Any number of inputs of one width."""
        return Form(equal(widths))


@dataclass(frozen=True)
class FirstOrder(Operator):
    """Of x and the rows' weights: <w, x> + b + the sum of the weights, with ``weight`` (1, x) and ``bias`` (1,), all of
    which begin at 0. Of the weights alone: b + their sum.
    """

    def form(self, *widths: int) -> Form:
        """Two inputs of any width, or the weights alone."""
        bias = (f"{self.name}.bias", (1,))
        if len(widths) == 1:
            return Form(1, (bias,))
        x, _ = exactly(2, widths)
        return Form(1, ((f"{self.name}.weight", (1, x)), bias), x)


@dataclass(frozen=True)
class FieldVectors(Operator):
    """x_i v_i for every i of x: the vector of a dense field, as an embedding row is that of an id; ``vectors`` (x,
    dim).
    """

    dim: int

    def form(self, *widths: int) -> Form:
        """One input of any width."""
        (x,) = exactly(1, widths)
        within("dim", self.dim, 1, WIDEST)
        return Form(x * self.dim, ((f"{self.name}.vectors", (x, self.dim)),), x * self.dim)


@dataclass(frozen=True)
class FactorizationMachine(Operator):
    """The sum of <v_i, v_j> over all pairs i < j of concatenated vectors v_i (dim,) (Rendle, ICDM 2010)."""

    dim: int

    def form(self, *widths: int) -> Form:
        """One input, whole vectors."""
        (fields,) = exactly(1, widths)
        within("dim", self.dim, 1, WIDEST)
        if fields % self.dim:
            raise ValueError(f"{self.inputs[0]} has {fields} values, not a multiple of dim = {self.dim}")
        return Form(1, products=fields)
