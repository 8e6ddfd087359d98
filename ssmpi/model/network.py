"""A network as a value: an ordered list of operators, each with named inputs, whose last output is the logit.

Widths, the parameters and their offsets in the flat vector, sizes and costs all follow from the list; ``program``
compiles it, ``reference`` computes it by torch. Every value is a vector per example; three are inputs: ``dense``, and,
concatenated over an example's embedding rows, the vectors (``rows``) and the first-order weights (``weights``). The row
layout follows from which of them are read. Kinds of operators are in ``operators`` and ``field_operators``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ssmpi.model.operator_checks import check_fields, check_input, check_names
from ssmpi.model.operators import (
    Activation,
    Concat,
    DotInteraction,
    Dropout,
    Form,
    Gate,
    LayerNorm,
    Linear,
    Operator,
    Parameter,
    Product,
    Shape,
    Slice,
    check_kind,
    exactly,
)
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.row_layout import RowLayout
from ssmpi.runtime.words import counted

DENSE, ROWS, WEIGHTS = "dense", "rows", "weights"

__all__ = [
    "DENSE", "ROWS", "WEIGHTS", "Activation", "Concat", "DotInteraction", "Dropout", "Form", "Gate", "Inputs",
    "LayerNorm", "Linear", "Network", "Operator", "Parameter", "Product", "Shape", "Slice", "cross", "dropped",
    "exactly", "floats_in", "mlp",
]  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """A network's inputs per example: ``dense`` continuous features, and a row of each table, whose vector, if it has
    one, has ``dim`` floats.
    """

    dense: int
    tables: int
    dim: int

    def widths(self) -> dict[str, int]:
        """Floats per example of the inputs."""
        return {DENSE: self.dense, ROWS: self.tables * self.dim, WEIGHTS: self.tables}


def mlp(name: str, source: str, widths: Sequence[int], *, last: str = "relu", dropout: float = 0.0) -> list[Operator]:
    """Linear layers with ReLU between them and the activation ``last`` behind the last one; named as in an
    ``nn.Sequential`` that counts the activations too: ``top.0``, ``top.2``, ... With a rate of ``dropout`` that follows
    every activation.
    """
    layers: list[Operator] = []
    for depth, outputs in enumerate(widths):
        activation = last if depth == len(widths) - 1 else "relu"
        layers.append(Linear(f"{name}.{2 * depth}", (source,), outputs, activation))
        if activation != "none":
            layers += dropped(layers[-1].name, dropout)
        source = layers[-1].name
    return layers


def dropped(source: str, rate: float) -> list[Operator]:
    """A ``Dropout`` behind an operator; none at rate 0."""
    return [Dropout(f"{source}.dropout", (source,), rate)] if rate else []


def cross(name: str, source: str, width: int, layers: int, rank: int) -> list[Operator]:
    """DCN v2's cross layers (Wang et al., arXiv 2008.13535, eq. 1 and 2): x' = x_0 * (W x + b) + x, with W of full rank
    (``rank`` 0) or W = U V of this rank.
    """
    operators: list[Operator] = []
    x = source
    for layer in range(layers):
        update = x
        if rank:
            operators.append(Linear(f"{name}.{layer}.v", (update,), rank, bias=False))
            update = operators[-1].name
        operators.append(Linear(f"{name}.{layer}.w", (update,), width))
        operators.append(Gate(f"{name}.{layer}", (source, operators[-1].name, x)))
        x = operators[-1].name
    return operators


@dataclass(frozen=True)
class Network:
    """``operators`` over ``inputs``; SettingsError, which names operator and widths, where they do not fit."""

    operators: tuple[Operator, ...]
    inputs: Inputs

    def __post_init__(self) -> None:
        call = "Network((operator, ...), inputs)"
        if not isinstance(self.operators, (tuple, list)):
            raise SettingsError(f"network: {self.operators!r:.60} is not a tuple of operators: {call}")
        if not isinstance(self.inputs, Inputs):
            raise SettingsError(
                f"network: {self.inputs!r:.60} is not the Inputs that the function is called with: {call}"
            )
        if not self.operators:
            raise SettingsError(f"network: no operators: {call}; the last one outputs the logit")
        for place, operator in enumerate(self.operators, 1):
            check_kind(f"network: operator {place} of {len(self.operators)}", operator)
            check_fields(_place(operator), operator)
        read, end = self._read, self.operators[-1]
        if self.widths[end.name] != 1:
            width = self.widths[end.name]
            raise SettingsError(f"network: ends in {end.name!r} of width {width}, not in a logit of width 1")
        if not self.parameters:
            raise SettingsError(
                "network: no operator has parameters, so there is nothing to train: add a Linear, for example"
            )
        if not read & {ROWS, WEIGHTS}:
            raise SettingsError(f"network: no operator reads {ROWS!r} or {WEIGHTS!r}")
        if isinstance(end, (Linear, Activation)) and end.activation != "none":
            activation = end.activation
            raise SettingsError(f"network: ends in {end.name!r} with activation {activation}; a logit has 'none'")
        for operator in self.operators[:-1]:
            if operator.name not in read:
                raise SettingsError(f"network: no operator reads {operator.name!r}: remove it, or let another read it")

    @cached_property
    def _read(self) -> set[str]:
        return {name for operator in self.operators for name in operator.inputs}

    @cached_property
    def rows(self) -> RowLayout:
        """The row layout that its operators need."""
        return RowLayout(self.inputs.dim if ROWS in self._read else 0, WEIGHTS in self._read)

    @cached_property
    def forms(self) -> dict[str, Form]:
        """The form of every operator, by name."""
        widths, found = self.inputs.widths(), dict[str, Form]()
        names, operators = set[str](), {operator.name for operator in self.operators}
        for operator in self.operators:
            place = _place(operator)
            for name in operator.inputs:
                check_input(place, name, widths, operators)
            if operator.name in widths:
                raise SettingsError(f"{place}: another operator or an input has its name")
            try:
                form: object = operator.form(*(widths[name] for name in operator.inputs))
            except ValueError as error:
                raise SettingsError(f"{place}: {error}") from error
            if not isinstance(form, Form):
                raise SettingsError(
                    f"{place}: form returned {form!r:.60}, not a Form: return Form(width, parameters, products)"
                )
            check_names(place, f"{operator.name}.", [name for name, _ in form.parameters], names)
            names.update(name for name, _ in form.parameters)
            found[operator.name], widths[operator.name] = form, form.width
        return found

    @cached_property
    def widths(self) -> dict[str, int]:
        """Floats per example of every value, in the order of computation."""
        return self.inputs.widths() | {name: form.width for name, form in self.forms.items()}

    @cached_property
    def layout(self) -> list[Parameter]:
        """Names and shapes of all parameters, in the order of the flat vector."""
        return [parameter for form in self.forms.values() for parameter in form.parameters]

    @property
    def parameters(self) -> int:
        """Floats in the flat vector."""
        return floats_in(self.layout)

    @property
    def activations(self) -> int:
        """Floats per example of all operator outputs."""
        return sum(form.width for form in self.forms.values())

    def describe(self) -> list[str]:
        """The network as text, one line per operator."""
        lines = []
        for operator in self.operators:
            form, kind = self.forms[operator.name], type(operator).__name__
            if isinstance(operator, (Linear, Activation)) and operator.activation != "none":
                kind += f" + {operator.activation}"
            sources = ", ".join(f"{name} ({self.widths[name]})" for name in operator.inputs)
            costs = f"{counted(floats_in(form.parameters), 'parameter')}, {counted(form.products, 'product')}"
            lines.append(f"{operator.name} ({form.width}) = {kind} of {sources}: {costs}")
        return lines


def _place(operator: Operator) -> str:
    return f"network: operator {operator.name!r} ({type(operator).__name__})"


def floats_in(layout: Sequence[Parameter]) -> int:
    """The number of floats in these parameters."""
    return sum(math.prod(shape) for _, shape in layout)
