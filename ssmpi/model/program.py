"""A network as a table of integers that compiled code interprets: what each instruction reads and writes, and where.
Values are concatenated in a buffer, each as (examples, width); a value's place is the number of floats per example
before it. The rows stay where they were pulled to: their place is ``ROWS_PLACE``. Gradients with respect to values have
the same places in a second buffer. If several instructions read a value, the last of them, which comes first in the
backward pass, writes its gradient; the others accumulate. If rows have vectors and weights, the first instructions
separate them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ssmpi.model.field_operators import FactorizationMachine, FieldVectors, FirstOrder, Sum
from ssmpi.model.network import (
    DENSE,
    ROWS,
    WEIGHTS,
    Concat,
    DotInteraction,
    Gate,
    Linear,
    Network,
    Operator,
    floats_in,
)
from ssmpi.model.onednn_gemm import Layer, copies_of

ROWS_PLACE = -1
NOWHERE = -2  # no bias, no second input

# Kinds of instructions; those after GATE are in ``field_kernels``.
LINEAR, INTERACTION, COPY, GATE, ADD, TAKE, ADD_SUMS, SCALE, MACHINE = range(9)

# Columns. A, B and C are the places of inputs. DETAIL depends on the kind: the tables (INTERACTION), the first
# column of the output (COPY), whether to accumulate (ADD), the floats of a vector (SCALE, MACHINE), the first column to
# take of each row (TAKE; BIAS is then the width of a row), or the place of the weight's copies (LINEAR).
KIND, A, B, C, OUT, INPUTS, OUTPUTS, WEIGHT, BIAS, DETAIL, FLAGS = range(11)
COLUMNS = FLAGS + 1

# Flags: the activation; the inputs that need gradients, and those whose gradients are accumulated.
RELU, SIGMOID = 1, 2
BY_A, BY_B, BY_C = 4, 8, 16
ADD_A, ADD_B, ADD_C = 32, 64, 128
HALF = 256  # products of a linear layer in bfloat16

FORWARD, LOSS, BACKWARD = range(3)  # kinds of segments

NARROWEST = 32  # inputs or outputs of a layer in bfloat16: a fixed rule, so results do not depend on the machine


class Segment(NamedTuple):
    """One item of a step: the forward or backward pass of instructions ``first`` to ``last`` - 1, or the loss, which
    has none.
    """

    kind: int
    first: int = 0
    last: int = 0


@dataclass
class Program:
    """``table`` int64 (instructions, 11); ``floats`` is the size of all values per example; the last float is the
    logit. ``layers`` are the linear layers; with ``precision`` "bf16" the products of wide ones are in bfloat16.
    ``cuts`` names operators, in order, after which a segment ends; results do not depend on them.
    """

    network: Network
    precision: str = "fp32"
    cuts: Sequence[str] = ()
    segments: list[Segment] = field(init=False)
    layers: list[Layer] = field(init=False, default_factory=list)
    places: dict[str, int] = field(init=False)
    floats: int = field(init=False)

    def __post_init__(self) -> None:
        rows = self.network.rows
        unread = {ROWS} if not rows.vector else {WEIGHTS} if not rows.weight else set()
        as_pulled = {ROWS, WEIGHTS} - unread if unread else set()
        self.places, self.floats = dict.fromkeys(as_pulled, ROWS_PLACE), 0
        for name, width in self.network.widths.items():
            if name not in as_pulled | unread:
                self.places[name] = self.floats
                self.floats += width
        instructions, ends = self._instructions()
        self.table = np.array(instructions, np.int64).reshape(-1, COLUMNS)
        _mark_gradients(self.table, self.places[DENSE] if self.network.inputs.dense else NOWHERE)
        ranges = list(itertools.pairwise([0, *(ends[name] for name in self.cuts), len(instructions)]))
        forward = [Segment(FORWARD, *each) for each in ranges]
        self.segments = [*forward, Segment(LOSS), *(Segment(BACKWARD, *each) for each in reversed(ranges))]

    def _instructions(self) -> tuple[list[list[int]], dict[str, int]]:
        """All instructions, and how many there are up to each operator, itself included."""
        weight, ends, instructions = 0, dict[str, int](), list(self._taken_rows())
        for operator in self.network.operators:
            instructions += self._of(operator, weight)
            ends[operator.name] = len(instructions)
            weight += floats_in(self.network.forms[operator.name].parameters)
        return instructions, ends

    def _taken_rows(self) -> Iterator[list[int]]:
        """The instructions that separate vectors and weights of the rows, if these have both."""
        rows = self.network.rows
        if rows.groups > 1:
            for name, first in ((ROWS, 0), (WEIGHTS, rows.vector)):
                place, width = self.places[name], self.network.widths[name]
                whole = self.network.inputs.tables * rows.width
                yield [TAKE, ROWS_PLACE, NOWHERE, NOWHERE, place, whole, width, 0, rows.width, first, 0]

    @property
    def copies(self) -> int:
        """The total size of the weight copies of all ``layers``, in uint16 numbers."""
        return sum(copies_of(*layer) for layer in self.layers)

    def _of(self, operator: Operator, weight: int) -> Iterator[list[int]]:
        """The instructions of one operator, whose parameters start at ``weight``."""
        width, widths = self.network.widths[operator.name], [self.network.widths[name] for name in operator.inputs]
        places, out = [self.places[name] for name in operator.inputs], self.places[operator.name]
        match operator:
            case Linear():
                bias = weight + width * widths[0] if operator.bias else NOWHERE
                flag = {"none": 0, "relu": RELU, "sigmoid": SIGMOID}[operator.activation]
                yield self._linear(places[0], out, (widths[0], width), (weight, bias), flag)
            case DotInteraction():
                yield [INTERACTION, *places, NOWHERE, out, widths[0], width, 0, 0, operator.tables, 0]
            case Concat():
                column = 0
                for place, inputs in zip(places, widths, strict=True):
                    yield [COPY, place, NOWHERE, NOWHERE, out, inputs, width, 0, 0, column, 0]
                    column += inputs
            case Gate():
                yield [GATE, *places, out, width, width, 0, 0, 0, 0]
            case Sum():
                for number, place in enumerate(places):
                    yield [ADD, place, NOWHERE, NOWHERE, out, width, width, 0, 0, min(number, 1), 0]
            case FirstOrder():
                yield self._linear(places[0], out, (widths[0], width), (weight, weight + widths[0]))
                yield [ADD_SUMS, places[1], NOWHERE, NOWHERE, out, widths[1], width, 0, 0, 0, 0]
            case FieldVectors():
                yield [SCALE, places[0], NOWHERE, NOWHERE, out, widths[0], width, weight, 0, operator.dim, 0]
            case FactorizationMachine():
                yield [MACHINE, places[0], NOWHERE, NOWHERE, out, widths[0], width, 0, 0, operator.dim, 0]
            case _:
                raise NotImplementedError(f"no instruction for {type(operator).__name__}")

    def _linear(
        self, a: int, out: int, widths: tuple[int, int], parameters: tuple[int, int], flag: int = 0
    ) -> list[int]:
        """A LINEAR instruction with ``widths`` inputs and outputs, and weight and bias at ``parameters``. Adds a layer,
        with a place for the copies of its weight.
        """
        half, copies = self.precision == "bf16" and min(widths) >= NARROWEST, self.copies
        self.layers.append((half, widths[1], widths[0]))
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
