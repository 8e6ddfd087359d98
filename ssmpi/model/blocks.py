"""The products of a linear layer by oneDNN's kernels, in float32 and in bfloat16: how operands lie, and the room for
them. Values, weights and gradients that come in or go out are flat float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from ssmpi.core.aligned import aligned
from ssmpi.model import bfloat16, kernels
from ssmpi.model.bfloat16 import EDGE, PANEL, TILE, up_to
from ssmpi.model.brgemm import NONE, SINGLE_ROWS, Kernels, panel, product

Layer = tuple[bool, int, int]  # in bfloat16, outputs, inputs
GROUP = 1 << 18  # floats of panels that lie in cache together


class Operands(NamedTuple):
    """The kernels; ``copies`` uint16, the weights as right operands; ``room`` uint16 for the activations of a layer."""

    kernels: Kernels
    copies: np.ndarray
    room: np.ndarray


def operands(kernels: Kernels, layers: Sequence[Layer], examples: int) -> Operands:
    """For these layers and pieces of so many examples; the copies lie one behind the other."""
    if kernels == NONE:
        layers = ()
    room = max((room_for(examples, *layer) for layer in layers), default=0)
    copies = sum(copies_of(*layer) for layer in layers)
    operands = Operands(kernels, aligned((copies,), np.uint16), aligned((room,), np.uint16))
    operands.copies.fill(0)
    operands.room.fill(0)
    return operands


def copies_of(half: bool, outputs: int, inputs: int) -> int:
    """uint16 numbers in the copies of a weight (outputs, inputs), right operands of the forward product and, in
    bfloat16, of the backward one too.
    """
    if half:
        return up_to(inputs, EDGE) * up_to(outputs, PANEL) + up_to(outputs, 2) * up_to(inputs, PANEL)
    return 2 * inputs * up_to(outputs, PANEL)


def room_for(examples: int, half: bool, outputs: int, inputs: int) -> int:
    """uint16 numbers of room that one layer needs for a piece of so many examples."""
    height = up_to(examples, EDGE)
    if not half:
        longest = max(height, outputs)
        panels = max(PANEL * max(longest, inputs), min(GROUP, up_to(inputs, PANEL) * longest))
        return 2 * (panels + height * outputs)
    lines = EDGE * max(up_to(outputs, EDGE), up_to(inputs, EDGE))
    return lines + height * (up_to(inputs, PANEL) + up_to(outputs, TILE)) + height * up_to(max(outputs, inputs), EDGE)


@njit(cache=True, nogil=True)
def refresh(blocks: Operands, place: int, weight: np.ndarray, m: int, k: int) -> None:
    """Lay out a weight float32 (m, k) as it is now for the forward product."""
    bfloat16.transposed_words(weight, m, k, PANEL, blocks.copies[place:])


@njit(cache=True, nogil=True)
def outputs(
    blocks: Operands, laid_out: bool, place: int, values: np.ndarray, weight: np.ndarray, bias: np.ndarray, relu: bool,
    out: np.ndarray, n: int, m: int, k: int,
) -> None:  # fmt: skip
    """out (n, m) = values (n, k) weight (m, k)^T + bias (m,), if there is one, and its ``relu``.

    A panel of outputs at a time, which is in cache when the bias is added; so is its part of the weight, unless that is
    ``laid_out`` at ``place`` for all pieces of a batch.
    """
    room = blocks.room if not laid_out else blocks.copies[place:]
    for column in range(0, m, PANEL):
        width = min(PANEL, m - column)
        if laid_out:
            right = room.view(np.float32)[column * k :]
        else:
            bfloat16.transposed_words(weight[column * k :], width, k, PANEL, room)
            right = room.view(np.float32)
        panel(blocks.kernels.single, False, values, right, out[column:], (n, width, k), (k, PANEL, m), False)
        if bias.size:
            kernels.add_bias(out[column:], bias[column : column + width], n, m, relu)
    if relu and not bias.size:
        kernels.relu(out)


@njit(cache=True, nogil=True)
def by_weight(
    blocks: Operands, by_out: np.ndarray, values: np.ndarray, out: np.ndarray, n: int, m: int, k: int, fresh: bool
) -> None:
    """out (m, k) = by_out (n, m)^T values (n, k), added unless ``fresh``. In two parts, for the number of kernels: one
    of a multiple of TILE examples, then what is left.
    """
    across, whole = up_to(n, TILE), n - n % TILE
    left = blocks.room[blocks.room.size - 2 * across * m :]
    bfloat16.transposed_words(by_out, n, m, across, left)
    for first, count in ((0, whole), (whole, n - whole)):
        if count:
            add = not fresh or first > 0
            _by_panels(blocks, left.view(np.float32)[first:], values[first * k :], out, (m, k, count), across, add)


@njit(cache=True, nogil=True)
def by_values(
    blocks: Operands, by_out: np.ndarray, weight: np.ndarray, out: np.ndarray, n: int, m: int, k: int, fresh: bool
) -> None:
    """out (n, k) = by_out (n, m) weight (m, k), added unless ``fresh``."""
    _by_panels(blocks, by_out, weight, out, (n, k, m), m, not fresh)


@njit(cache=True, nogil=True)
def _by_panels(
    blocks: Operands, a: np.ndarray, b: np.ndarray, c: np.ndarray, sizes: tuple[int, int, int], across: int, add: bool
) -> None:
    """c (m, n) = a (m, k), with ``across`` from row to row, b (k, n). Panels of b are first put together where they are
    read often. What lies in memory, b and c, is met row by row: a page that is met again for every panel is looked up
    again, which takes longer than to read it.
    """
    m, n, k = sizes
    room, kernel = blocks.room.view(np.float32), blocks.kernels.single
    together = n if m < PANEL else max(1, GROUP // (k * PANEL)) * PANEL
    for first in range(0, n, together):
        end, right, below, beside = min(first + together, n), b[first:], n, 1
        if m >= PANEL:
            bfloat16.panels_of_words(right, k, end - first, n, room)
            right, below, beside = room, PANEL, k
        for row in range(0, m, SINGLE_ROWS):
            rows = min(SINGLE_ROWS, m - row)
            for column in range(first, end, PANEL):
                b_panel, block = right[(column - first) * beside :], c[row * n + column :]
                shape = rows, min(PANEL, end - column), k
                panel(kernel, False, a[row * across :], b_panel, block, shape, (across, below, n), add)


@njit(cache=True, nogil=True)
def refresh_half(blocks: Operands, place: int, weight: np.ndarray, m: int, k: int, backward: bool) -> None:
    """Round a weight float32 (m, k) as it is now into its copies, that for the ``backward`` product only if wanted."""
    copies = blocks.copies[place:]
    bfloat16.panels_of_transposed(weight, m, k, blocks.room, copies)
    if backward:
        bfloat16.panels(weight, m, k, up_to(m, 2), copies[up_to(k, EDGE) * up_to(m, PANEL) :])


@njit(cache=True, nogil=True)
def outputs_half(blocks: Operands, place: int, values: np.ndarray, out: np.ndarray, n: int, m: int, k: int) -> None:
    """As ``outputs``, of bfloat16 numbers."""
    across, copy = up_to(k, 2), blocks.copies[place:]
    bfloat16.rows(values, n, k, across, blocks.room)
    product(blocks.kernels.half, True, blocks.room, copy, out, (n, m, across), (across, PANEL, up_to(k, EDGE)), False)


@njit(cache=True, nogil=True)
def by_weight_half(
    blocks: Operands, by_out: np.ndarray, values: np.ndarray, out: np.ndarray, n: int, m: int, k: int, fresh: bool
) -> None:
    """As ``by_weight``, of bfloat16 numbers."""
    height, room = up_to(n, EDGE), blocks.room
    first = EDGE * up_to(m, EDGE)
    left, right = room[first:], room[first + height * up_to(m, TILE) :]
    bfloat16.transposed(by_out, n, m, height, room, left)
    bfloat16.panels(values, n, k, height, right)
    product(blocks.kernels.half, True, left, right, out, (m, k, height), (height, PANEL, height), not fresh)


@njit(cache=True, nogil=True)
def by_values_half(
    blocks: Operands, place: int, by_out: np.ndarray, out: np.ndarray, n: int, m: int, k: int, fresh: bool
) -> None:
    """As ``by_values``, of bfloat16 numbers, with the weight's copies at ``place``."""
    across, copy = up_to(m, 2), blocks.copies[place + up_to(k, EDGE) * up_to(m, PANEL) :]
    bfloat16.rows(by_out, n, m, across, blocks.room)
    product(blocks.kernels.half, True, blocks.room, copy, out, (n, k, across), (across, PANEL, across), not fresh)
