"""The base class of operators, and those of MLPs, cross networks and masks, which users' files import from ``network``.
``field_operators`` has those of factorization machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from ssmpi.model.operator_checks import check_form
from ssmpi.model.options import WIDEST
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.settings import COUNT, within

ACTIVATIONS = ("none", "relu", "sigmoid", "gelu", "silu", "tanh", "prelu")

Shape = tuple[int, ...]
Parameter = tuple[str, Shape]


@dataclass(frozen=True)
class Form:
    """What follows from the widths of an operator's inputs: the ``width`` of its output, its ``parameters`` in the
    order of the flat vector, and the ``products`` (multiplications) of one example's forward pass. ValueError if they
    are invalid.
    """

    width: int
    parameters: tuple[Parameter, ...] = ()
    products: int = 0

    def __post_init__(self) -> None:
        check_form(self.width, self.parameters)


@dataclass(frozen=True)
class Operator:
    """``name`` names its output and prefixes its parameters' names; ``inputs`` are the values that it reads."""

    name: str
    inputs: tuple[str, ...]

    def form(self, *widths: int) -> Form:
        """The form for inputs of these widths; ValueError says what does not fit."""
        raise ValueError("it has no method 'form(self, *widths)', which returns its Form(width, parameters, products)")


def equal(widths: Shape) -> int:
    """The width of all inputs; ValueError if they differ."""
    if len(set(widths)) > 1:
        raise ValueError(f"its inputs have {', '.join(map(str, widths))} values: they must be equally wide")
    return widths[0]


def exactly(count: int, widths: Shape) -> Shape:
    """``widths``; ValueError unless there are ``count`` inputs."""
    if len(widths) != count:
        raise ValueError(f"inputs: {len(widths)} given, {count} needed")
    return widths


@dataclass(frozen=True)
class Linear(Operator):
    """activation(W x + b): ``weight`` (outputs, inputs) and, with ``bias``, ``bias`` (outputs,). ``Activation`` has the
    activations.
    """

    outputs: int
    activation: str = "none"
    bias: bool = True

    def form(self, *widths: int) -> Form:
        """One input of any width."""
        (inputs,) = exactly(1, widths)
        within("outputs", self.outputs, 1, WIDEST)
        weight, bias = (f"{self.name}.weight", (self.outputs, inputs)), (f"{self.name}.bias", (self.outputs,))
        slope = slopes(self.name, self.activation, self.outputs)
        return Form(self.outputs, (weight, *[bias] * self.bias, *slope), inputs * self.outputs)


def slopes(name: str, activation: str, width: int) -> tuple[Parameter, ...]:
    """The parameters of an activation of so many values: for prelu ``slope`` (width,). ValueError if it is none."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    return ((f"{name}.slope", (width,)),) if activation == "prelu" else ()


@dataclass(frozen=True)
class Activation(Operator):
    """The activation of every value of x, where no ``Linear`` is right before it: x Phi(x) for gelu, x sigmoid(x) for
    silu; for prelu x where it is positive, otherwise its ``slope`` (width,) times x.
    """

    activation: str

    def form(self, *widths: int) -> Form:
        """One input of any width."""
        (width,) = exactly(1, widths)
        if self.activation == "none":
            raise ValueError("activation 'none' changes nothing: leave the operator out")
        return Form(width, slopes(self.name, self.activation, width), width)


@dataclass(frozen=True)
class LayerNorm(Operator):
    """(x - mean) / sqrt(variance + 1e-5), times ``scale`` (width,), plus ``shift`` (width,), over all values of an
    example (Ba et al., arXiv 1607.06450), or over those of each vector (dim,) of x if ``dim`` is not 0.
    """

    dim: int = 0

    def form(self, *widths: int) -> Form:
        """One input, whole vectors."""
        (width,) = exactly(1, widths)
        within("dim", self.dim, 0, WIDEST)
        if self.dim and width % self.dim:
            raise ValueError(f"{self.inputs[0]} has {width} values, not a multiple of dim = {self.dim}")
        return Form(width, ((f"{self.name}.scale", (width,)), (f"{self.name}.shift", (width,))), 3 * width)


@dataclass(frozen=True)
class Product(Operator):
    """All inputs multiplied, elementwise."""

    def form(self, *widths: int) -> Form:
        """Two or more inputs of one width."""
        if len(widths) < 2:
            raise ValueError(f"inputs: {len(widths)} given, at least 2 needed")
        return Form(equal(widths), products=(len(widths) - 1) * widths[0])


@dataclass(frozen=True)
class Dropout(Operator):
    """In training each value becomes 0 with probability ``rate``, and is otherwise divided by 1 - ``rate`` (Srivastava
    et al., JMLR 2014); in scoring it stays. What becomes 0 follows from the run's seed, the example and the pass alone.
    """

    rate: float

    @property
    def dropped(self) -> int:
        """The rate in 2^-24."""
        return int(self.rate * (1 << 24))

    def form(self, *widths: int) -> Form:
        """One input of any width."""
        (width,) = exactly(1, widths)
        if not 0 <= self.rate < 1:
            raise ValueError(f"rate is at least 0 and less than 1, got {self.rate}")
        return Form(width, products=width)


@dataclass(frozen=True)
class DotInteraction(Operator):
    """DLRM's, of x (dim,) and rows: x, then the dot product of every pair of x and the rows of ``tables`` tables, lower
    triangle without the diagonal.
    """

    tables: int

    def form(self, *widths: int) -> Form:
        """x as wide as a row."""
        x, rows = exactly(2, widths)
        within("tables", self.tables, 1, COUNT)
        if x * self.tables != rows:
            raise ValueError(
                f"{self.inputs[0]} has {x} values, a row {rows // self.tables}: dot products need equal lengths"
            )
        pairs = (self.tables + 1) * self.tables // 2
        return Form(x + pairs, products=pairs * x)


@dataclass(frozen=True)
class Concat(Operator):
    """All inputs, concatenated."""

    def form(self, *widths: int) -> Form:
        """Any number of inputs."""
        return Form(sum(widths))


@dataclass(frozen=True)
class Slice(Operator):
    """``columns`` of its input, from the one of number ``first``."""

    first: int
    columns: int

    def form(self, *widths: int) -> Form:
        """One input that has these columns."""
        (inputs,) = exactly(1, widths)
        within("first", self.first, 0, inputs - 1)
        within("columns", self.columns, 1, inputs - self.first)
        return Form(self.columns)


@dataclass(frozen=True)
class Gate(Operator):
    """start * update + x, elementwise, of inputs in this order: a cross layer of DCN v2 where ``update`` is a linear
    map of x.
    """

    def form(self, *widths: int) -> Form:
        """Three inputs of one width."""
        start, update, x = exactly(3, widths)
        if not start == update == x:
            raise ValueError(f"its inputs have {start}, {update} and {x} values: they must be equally wide")
        return Form(x, products=x)


def check_kind(place: str, operator: object) -> None:
    """SettingsError unless it is an operator whose inputs are names."""
    if not isinstance(operator, Operator):
        hint = ": put a * before a list of operators, as in *mlp(...)" if isinstance(operator, list) else ""
        raise SettingsError(f"{place} is not an operator: {operator!r:.60}{hint}")
    if isinstance(operator.inputs, str):
        raise SettingsError(f"{place}, {operator.name!r}: inputs is a string: write ({operator.inputs!r},)")
    if not operator.inputs:
        raise SettingsError(f"{place}, {operator.name!r} ({type(operator).__name__}): it has no inputs")
    given = operator.inputs if isinstance(operator.inputs, (tuple, list)) else ()
    if found := [value for value in given if isinstance(value, Operator)]:
        raise SettingsError(
            f"{place}, {operator.name!r}: inputs are names: write {found[0].name!r} instead of the operator"
        )
