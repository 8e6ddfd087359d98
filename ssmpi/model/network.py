"""A network as a value: an ordered list of operators, each with named inputs, whose last output is the logit.

The list is the program. Widths, the parameters and their places in the flat vector, sizes and costs all follow from
it; ``program`` compiles it, ``reference`` computes it by torch. Every value is a vector per example; three come from
outside: ``dense``, and of the embedding rows of an example's ids, behind each other, their vectors (``rows``) and their
first-order weights (``weights``). What of a row is read is what a row has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ssmpi.core.errors import SettingsError
from ssmpi.core.row_layout import RowLayout

DENSE, ROWS, WEIGHTS = "dense", "rows", "weights"
ACTIVATIONS = ("none", "relu", "sigmoid")

Shape = tuple[int, ...]
Parameter = tuple[str, Shape]


@dataclass(frozen=True)
class Inputs:
    """What a network is given per example: ``dense`` continuous features, a row of each table, whose vector, if it has
    one, is of ``dim`` floats.
    """

    dense: int
    tables: int
    dim: int

    def widths(self) -> dict[str, int]:
        """Floats per example of the values from outside."""
        return {DENSE: self.dense, ROWS: self.tables * self.dim, WEIGHTS: self.tables}


@dataclass(frozen=True)
class Form:
    """What follows from the widths of an operator's inputs: the ``width`` of its output, its ``parameters`` in the
    order of the flat vector, and the ``products`` (multiplications) of one example's forward pass.
    """

    width: int
    parameters: tuple[Parameter, ...] = ()
    products: int = 0


@dataclass(frozen=True)
class Operator:
    """``name`` is that of its output and begins its parameters' names; ``inputs`` are the values that it reads."""

    name: str
    inputs: tuple[str, ...]

    def form(self, *widths: int) -> Form:
        """For inputs of these widths; ValueError, which says what does not fit."""
        raise ValueError("it has no method 'form(self, *widths)', which gives its Form(width, parameters, products)")


def exactly(count: int, widths: Shape) -> Shape:
    """``widths``, of so many inputs; ValueError for another number of them."""
    if len(widths) != count:
        raise ValueError(f"inputs: {len(widths)} given, {count} needed")
    return widths


@dataclass(frozen=True)
class Linear(Operator):
    """activation(W x + b): ``weight`` (outputs, inputs) and, with ``bias``, ``bias`` (outputs,)."""

    outputs: int
    activation: str = "none"
    bias: bool = True

    def form(self, *widths: int) -> Form:
        """One input of any width."""
        (inputs,) = exactly(1, widths)
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation is one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        if self.outputs < 1:
            raise ValueError(f"outputs must be at least 1, got {self.outputs}")
        weight, bias = (f"{self.name}.weight", (self.outputs, inputs)), (f"{self.name}.bias", (self.outputs,))
        return Form(self.outputs, (weight, bias) if self.bias else (weight,), inputs * self.outputs)


@dataclass(frozen=True)
class DotInteraction(Operator):
    """DLRM's, of x (dim,) and rows: x, then the dot product of every pair of x and the rows of ``tables`` tables, lower
    triangle without the diagonal.
    """

    tables: int

    def form(self, *widths: int) -> Form:
        """x as wide as a row."""
        x, rows = exactly(2, widths)
        if x * self.tables != rows:
            raise ValueError(f"{self.inputs[0]} has {x} values, a row {rows // self.tables}: dot products need as many")
        pairs = (self.tables + 1) * self.tables // 2
        return Form(x + pairs, products=pairs * x)


@dataclass(frozen=True)
class Concat(Operator):
    """All inputs, one behind the other."""

    def form(self, *widths: int) -> Form:
        """Any number of inputs."""
        return Form(sum(widths))


@dataclass(frozen=True)
class Gate(Operator):
    """start * update + x, elementwise, of inputs in this order: a cross layer of DCN v2 where ``update`` is a linear
    map of x.
    """

    def form(self, *widths: int) -> Form:
        """Three inputs of one width."""
        start, update, x = exactly(3, widths)
        if not start == update == x:
            raise ValueError(f"its inputs have {start}, {update} and {x} values: it needs as many of each")
        return Form(x, products=x)


def mlp(name: str, source: str, widths: Sequence[int], *, last: str = "relu") -> list[Operator]:
    """Linear layers with ReLU between them and the activation ``last`` behind the last one; named as in an
    ``nn.Sequential`` that counts the activations too: ``top.0``, ``top.2``, ...
    """
    layers: list[Operator] = []
    for depth, outputs in enumerate(widths):
        activation = last if depth == len(widths) - 1 else "relu"
        layers.append(Linear(f"{name}.{2 * depth}", (source,), outputs, activation))
        source = layers[-1].name
    return layers


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
        for place, operator in enumerate(self.operators, 1):
            _check_kind(f"network: operator {place} of {len(self.operators)}", operator)
        read = self._read
        last = self.operators[-1].name if self.operators else DENSE
        if not self.operators or self.widths[last] != 1:
            raise SettingsError(f"network: ends in {last!r} of width {self.widths[last]}, not in a logit of width 1")
        if not read & {ROWS, WEIGHTS}:
            raise SettingsError(f"network: no operator reads {ROWS!r} or {WEIGHTS!r}")
        if isinstance(end := self.operators[-1], Linear) and end.activation != "none":
            raise SettingsError(f"network: ends in {last!r} with {end.activation}: a logit has the activation 'none'")
        for operator in self.operators[:-1]:
            if operator.name not in read:
                raise SettingsError(f"network: no operator reads {operator.name!r}")

    @cached_property
    def _read(self) -> set[str]:
        return {name for operator in self.operators for name in operator.inputs}

    @cached_property
    def rows(self) -> RowLayout:
        """What of a row its operators read."""
        return RowLayout(self.inputs.dim if ROWS in self._read else 0, WEIGHTS in self._read)

    @cached_property
    def forms(self) -> dict[str, Form]:
        """Of every operator, by name."""
        widths, found = self.inputs.widths(), dict[str, Form]()
        for operator in self.operators:
            place = f"network: operator {operator.name!r} ({type(operator).__name__})"
            for name in operator.inputs:
                if name not in widths:
                    raise SettingsError(f"{place} reads {name!r}, which nothing before it makes: {', '.join(widths)}")
                if not widths[name]:
                    raise SettingsError(f"{place} reads {name!r}, but this data has no {name} features")
            if operator.name in widths:
                raise SettingsError(f"{place}: its name is taken")
            try:
                found[operator.name] = operator.form(*(widths[name] for name in operator.inputs))
            except ValueError as error:
                raise SettingsError(f"{place}: {error}") from error
            widths[operator.name] = found[operator.name].width
        return found

    @cached_property
    def widths(self) -> dict[str, int]:
        """Floats per example of every value, in the order in which they come to be."""
        return self.inputs.widths() | {name: form.width for name, form in self.forms.items()}

    @cached_property
    def layout(self) -> list[Parameter]:
        """Names and shapes of all parameters, in the order of the flat vector."""
        return [parameter for form in self.forms.values() for parameter in form.parameters]

    @property
    def borders(self) -> tuple[int, ...]:
        """Where each layer, an operator with all its parameters, ends in the flat vector."""
        ends = itertools.accumulate(floats_in(form.parameters) for form in self.forms.values())
        return tuple(dict.fromkeys(end for end in ends if end))

    @property
    def parameters(self) -> int:
        """Floats in the flat vector."""
        return floats_in(self.layout)

    @property
    def activations(self) -> int:
        """Floats per example of all values that operators make."""
        return sum(form.width for form in self.forms.values())

    def describe(self) -> list[str]:
        """The program in words, a line an operator."""
        lines = []
        for operator in self.operators:
            form, kind = self.forms[operator.name], type(operator).__name__
            if isinstance(operator, Linear) and operator.activation != "none":
                kind += f" + {operator.activation}"
            sources = ", ".join(f"{name} ({self.widths[name]})" for name in operator.inputs)
            costs = f"{floats_in(form.parameters):,} parameters, {form.products:,} products"
            lines.append(f"{operator.name} ({form.width}) = {kind} of {sources}: {costs}")
        return lines


def _check_kind(place: str, operator: object) -> None:
    if not isinstance(operator, Operator):
        hint = ": put a * before a list of operators, as in *mlp(...)" if isinstance(operator, list) else ""
        raise SettingsError(f"{place} is no operator but {operator!r:.60}{hint}")
    if isinstance(operator.inputs, str):
        raise SettingsError(f"{place}, {operator.name!r}: its inputs are one text: write ({operator.inputs!r},)")


def floats_in(layout: Sequence[Parameter]) -> int:
    """Floats that these parameters have."""
    return sum(math.prod(shape) for _, shape in layout)
