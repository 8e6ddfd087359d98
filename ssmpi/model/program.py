"""A network as a table of integers that compiled code interprets: what each instruction reads and writes, and where.
Values are concatenated in a buffer, each as (examples, width); a value's place is the number of floats per example
before it. The rows stay where they were pulled to: their place is ``ROWS_PLACE``. Gradients with respect to values have
the same places in a second buffer. If several instructions read a value, the last of them, which comes first in the
backward pass, writes its gradient; the others accumulate. If rows have vectors and weights, the first instructions
separate them. A part of a network sends and receives values by mailboxes, and their gradients in the backward pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ssmpi.model.edges import Receive, Send
from ssmpi.model.estimates import Estimates
from ssmpi.model.field_operators import FactorizationMachine, FieldVectors, FirstOrder, Sum
from ssmpi.model.member_program import Item, MemberProgram, whole
from ssmpi.model.network import (
    DENSE,
    ROWS,
    WEIGHTS,
    Activation,
    Concat,
    DotInteraction,
    Dropout,
    Gate,
    LayerNorm,
    Linear,
    Network,
    Operator,
    Product,
    Slice,
    floats_in,
)
from ssmpi.model.onednn_gemm import Layer, copies_of
from ssmpi.model.operators import ACTIVATIONS
from ssmpi.model.top_k import Threshold, TopK

ROWS_PLACE = -1
NOWHERE = -2  # no bias, no second input

# Kinds of instructions: ``instructions`` has their compiled functions.
LINEAR, INTERACTION, COPY, TOP_K, THRESHOLD, GATE, ADD, TAKE, ADD_SUMS, SCALE, MACHINE = range(11)
SEND, RECEIVE, SEND_KEPT, RECEIVE_KEPT, SLICE, MULTIPLY, NORMALIZE, ACTIVATE, PRELU, DROP = range(11, 21)

# Columns. A, B and C are the places of inputs. DETAIL depends on the kind: the tables (INTERACTION), the first
# column of the output (COPY), whether to accumulate (ADD), the floats of a vector (SCALE, MACHINE, NORMALIZE), the
# first column to take (SLICE) or that of each row (TAKE; BIAS is then the width of a row), the place of the weight's
# copies (LINEAR), where the places of an example's kept values are, as int32 (TOP_K, SEND_KEPT, RECEIVE_KEPT), or the
# threshold is (THRESHOLD), which activation (ACTIVATE), the rate in 2^-24 (DROP; BIAS is the operator's number).
KIND, A, B, C, OUT, INPUTS, OUTPUTS, WEIGHT, BIAS, DETAIL, FLAGS = range(11)
COLUMNS = FLAGS + 1
KEPT, ESTIMATE = WEIGHT, BIAS  # how many values of an example pass (TOP_K); the row of the estimates (THRESHOLD)
THERE, BACK = WEIGHT, BIAS  # of SEND, RECEIVE and those of kept values: the mailboxes of the value and of its gradient

# Flags: the activation; the inputs that need gradients, and those whose gradients are accumulated.
RELU, SIGMOID = 1, 2
BY_A, BY_B, BY_C = 4, 8, 16
ADD_A, ADD_B, ADD_C = 32, 64, 128
MEASURE = 512  # whether THRESHOLD measures its input
HALF = 256  # products of a linear layer, or messages, in bfloat16

FUSED = {
    "none": 0,
    "relu": RELU,
    "sigmoid": SIGMOID,
}  # with the linear layer; others need its output for their gradient

NARROWEST = 32  # inputs or outputs of a layer in bfloat16: a fixed rule, so results do not depend on the machine


@dataclass
class Program:
    """``table`` int64 (instructions, 11) for a ``part`` of a network, or all of it; ``floats`` is the size of all
    values per example; at home the last instruction's output is the logit. ``layers`` are the linear layers; with
    ``precision`` "bf16" the products of those that are wide in the network are in bfloat16. ``places`` of values;
    ``NAME.kept`` is where the places are that the ``TopK`` of that name has kept, here or where it was received from.
    ``estimates`` are those that its instructions read and, if they learn, improve.
    """

    computed: Network | MemberProgram
    precision: str = "fp32"
    estimates: Estimates | None = None
    part: MemberProgram = field(init=False)
    layers: list[Layer] = field(init=False, default_factory=list)
    places: dict[str, int] = field(init=False)
    floats: int = field(init=False)

    def __post_init__(self) -> None:
        part = self.part = self.computed if isinstance(self.computed, MemberProgram) else whole(self.computed)
        self.estimates = self.estimates or Estimates(part.network)
        read = {name for item in part.operators for name in item.inputs}
        self._pulled = [name for name in (ROWS, WEIGHTS) if name in read and part.at_home]
        self.places, self.floats = dict.fromkeys(self._pulled, ROWS_PLACE), 0
        for name, width in part.widths.items():
            if (name in read or name not in (ROWS, WEIGHTS)) and (name not in self._pulled or len(self._pulled) > 1):
                self._reserve(name, width)
        for item in part.operators:
            if isinstance(item, (TopK, Threshold)):
                self._reserve(f"{item.name}.kept", item.kept(part.widths[item.name]) if isinstance(item, TopK) else 1)
            elif isinstance(item, Receive) and part.edges[item.edge].kept:
                self._reserve(f"{item.name}.kept", part.edges[item.edge].kept)
        starts = itertools.accumulate((floats_in([each]) for each in part.layout), initial=0)
        self._starts = dict(zip((name for name, _ in part.layout), starts, strict=False))
        instructions = [*self._taken_rows(), *(row for item in part.operators for row in self._of(item))]
        self.table = np.array(instructions, np.int64).reshape(-1, COLUMNS)
        _mark_gradients(self.table, self.places[DENSE] if part.widths.get(DENSE) else NOWHERE)

    def _reserve(self, name: str, width: int) -> None:
        self.places[name] = self.floats
        self.floats += width

    def _room(self, width: int) -> int:
        """The place of a value between the instructions of one operator."""
        self.floats += width
        return self.floats - width

    def _taken_rows(self) -> Iterator[list[int]]:
        """The instructions that separate vectors and weights of the rows, if these have both."""
        rows = self.part.network.rows
        if len(self._pulled) > 1:
            for name, first in ((ROWS, 0), (WEIGHTS, rows.vector)):
                place, width = self.places[name], self.part.widths[name]
                all_floats = self.part.inputs.tables * rows.width
                yield [TAKE, ROWS_PLACE, NOWHERE, NOWHERE, place, all_floats, width, 0, rows.width, first, 0]

    @property
    def copies(self) -> int:
        """The total size of the weight copies of all ``layers``, in uint16 numbers."""
        return sum(copies_of(*layer) for layer in self.layers)

    def _of(self, item: Item) -> Iterator[list[int]]:
        """The instructions of one operator, ``Send`` or ``Receive``."""
        widths, places = [self.part.widths[name] for name in item.inputs], [self.places[name] for name in item.inputs]
        if isinstance(item, Send):
            yield self._sent(item, places[0], widths[0])
            return
        width, out = self.part.widths[item.name], self.places[item.name]
        match item:
            case Receive():
                yield self._received(item, out)
            case Linear():
                fused = FUSED.get(item.activation)
                between = out if fused is not None else self._room(width)
                yield self._linear(item.name, places[0], between, (widths[0], width), fused or 0)
                if fused is None:
                    yield self._activation(item, between, out, width)
            case DotInteraction():
                yield [INTERACTION, *places, NOWHERE, out, widths[0], width, 0, 0, item.tables, 0]
            case Concat():
                column = 0
                for place, inputs in zip(places, widths, strict=True):
                    yield [COPY, place, NOWHERE, NOWHERE, out, inputs, width, 0, 0, column, 0]
                    column += inputs
            case TopK():
                kept = self.places[f"{item.name}.kept"]
                yield [TOP_K, places[0], NOWHERE, NOWHERE, out, width, width, item.kept(width), 0, kept, 0]
            case Threshold():
                assert self.estimates
                number, least = self.estimates.names.index(item.name), self.places[f"{item.name}.kept"]
                measured = MEASURE * self.estimates.learning
                yield [THRESHOLD, places[0], NOWHERE, NOWHERE, out, width, width, 0, number, least, measured]
            case Slice():
                yield [SLICE, places[0], NOWHERE, NOWHERE, out, widths[0], width, 0, 0, item.first, 0]
            case FirstOrder():
                bias = self._starts[f"{item.name}.bias"]
                if len(places) > 1:
                    yield self._linear(item.name, places[0], out, (widths[0], width))
                    bias = NOWHERE
                yield [ADD_SUMS, places[-1], NOWHERE, NOWHERE, out, widths[-1], width, 0, bias, 0, 0]
            case FieldVectors():
                vectors = self._starts[f"{item.name}.vectors"]
                yield [SCALE, places[0], NOWHERE, NOWHERE, out, widths[0], width, vectors, 0, item.dim, 0]
            case FactorizationMachine():
                yield [MACHINE, places[0], NOWHERE, NOWHERE, out, widths[0], width, 0, 0, item.dim, 0]
            case _:
                yield from self._elementwise(item, places, out, width)

    def _elementwise(self, item: Operator, places: Sequence[int], out: int, width: int) -> Iterator[list[int]]:
        """The instructions of an operator whose output is as wide as its inputs."""
        x = places[0]
        match item:
            case Gate():
                yield [GATE, *places, out, width, width, 0, 0, 0, 0]
            case Sum():
                for number, place in enumerate(places):
                    yield [ADD, place, NOWHERE, NOWHERE, out, width, width, 0, 0, min(number, 1), 0]
            case Activation():
                yield self._activation(item, x, out, width)
            case LayerNorm():
                scale, shift = (self._starts[f"{item.name}.{name}"] for name in ("scale", "shift"))
                yield [NORMALIZE, x, NOWHERE, NOWHERE, out, width, width, scale, shift, item.dim or width, 0]
            case Product():
                for factor in places[1:-1]:
                    between = self._room(width)
                    yield [MULTIPLY, x, factor, NOWHERE, between, width, width, 0, 0, 0, 0]
                    x = between
                yield [MULTIPLY, x, places[-1], NOWHERE, out, width, width, 0, 0, 0, 0]
            case Dropout():
                number = self.part.network.operators.index(item)
                yield [DROP, x, NOWHERE, NOWHERE, out, width, width, 0, number, item.dropped, 0]
            case _:
                raise NotImplementedError(f"no instruction for {type(item).__name__}")

    def _activation(self, item: Linear | Activation, x: int, out: int, width: int) -> list[int]:
        """An ACTIVATE or PRELU instruction."""
        if item.activation == "prelu":
            return [PRELU, x, NOWHERE, NOWHERE, out, width, width, self._starts[f"{item.name}.slope"], 0, 0, 0]
        which = ACTIVATIONS.index(item.activation)
        return [ACTIVATE, x, NOWHERE, NOWHERE, out, width, width, 0, 0, which, 0]

    def _sent(self, item: Send, place: int, width: int) -> list[int]:
        """A value at ``place`` leaves, or what of it was kept."""
        kept, (*boxes, half) = self.part.edges[item.edge].kept, self._message(item.edge)
        if kept:
            detail = self.places[f"{item.value}.kept"]
            return [SEND_KEPT, place, NOWHERE, NOWHERE, 0, width, kept, *boxes, detail, half]
        return [SEND, place, NOWHERE, NOWHERE, 0, width, 0, *boxes, 0, half]

    def _received(self, item: Receive, out: int) -> list[int]:
        """A value, or what of it was kept, arrives at ``out``."""
        edge, (*boxes, half) = self.part.edges[item.edge], self._message(item.edge)
        kind, detail = (RECEIVE_KEPT, self.places[f"{item.name}.kept"]) if edge.kept else (RECEIVE, 0)
        flags = half | BY_A * edge.gradient
        return [kind, NOWHERE, NOWHERE, NOWHERE, out, edge.entries, item.width, *boxes, detail, flags]

    def _message(self, number: int) -> tuple[int, int, int]:
        """The mailboxes of an edge, there and back, and the flag of its messages."""
        return number, len(self.part.edges) + number, HALF * self.part.edges[number].bf16

    def _linear(self, name: str, a: int, out: int, widths: tuple[int, int], flag: int = 0) -> list[int]:
        """A LINEAR instruction with ``widths`` inputs and outputs. Adds a layer, with a place for the copies of its
        weight.
        """
        wide = min(widths[0], self.part.network.widths[name]) >= NARROWEST
        half, copies = self.precision == "bf16" and wide, self.copies
        self.layers.append((half, widths[1], widths[0]))
        parameters = self._starts[f"{name}.weight"], self._starts.get(f"{name}.bias", NOWHERE)
        return [LINEAR, a, NOWHERE, NOWHERE, out, *widths, *parameters, copies, flag | (HALF if half else 0)]


def _mark_gradients(table: np.ndarray, dense: int) -> None:
    """Set which gradients each instruction computes: none for ``dense``; the first in backward order writes, others
    accumulate.
    """
    written: set[int] = set()
    for row in table[::-1]:
        for column, wanted, added in ((C, BY_C, ADD_C), (B, BY_B, ADD_B), (A, BY_A, ADD_A)):
            place = int(row[column])
            if place in (NOWHERE, dense):
                continue
            row[FLAGS] |= wanted | (added if place in written else 0)
            written.add(place)
