"""The products of a linear layer by oneDNN's kernels, in float32 and in bfloat16: the layout of operands, and their
workspace. Inputs and outputs (values, weights, gradients) are flat float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ssmpi.model import bfloat16, kernels
from ssmpi.model.bfloat16 import EDGE, PANEL, TILE, up_to
from ssmpi.model.brgemm import NONE, SINGLE_ROWS, Kernels, panel, product
from ssmpi.runtime.compiled.aligned import aligned
from ssmpi.runtime.compiled.cache_lines import FLOATS, ask
from ssmpi.runtime.compiled.jit import njit

Layer = tuple[bool, int, int]  # in bfloat16, outputs, inputs
GROUP = 1 << 18  # floats of the panels that are in cache at the same time
CONFLICTING = 256  # floats: rows of a multiple of it begin in a quarter of a cache's sets or fewer


class Operands(NamedTuple):
    """The kernels; ``copies`` uint16, the weights packed as right operands; ``buffer`` uint16, workspace for one
    layer.
    """

    kernels: Kernels
    copies: np.ndarray
    buffer: np.ndarray


def operands(kernels: Kernels, layers: Sequence[Layer], examples: int) -> Operands:
    """The operands of these layers for pieces of at most ``examples``; the copies are contiguous."""
    if kernels == NONE:
        layers = ()
    size = max((buffer_size(examples, *layer) for layer in layers), default=0)
    copies = sum(copies_of(*layer) for layer in layers)
    operands = Operands(kernels, aligned((copies,), np.uint16), aligned((size,), np.uint16))
    operands.copies.fill(0)
    operands.buffer.fill(0)
    return operands


def copies_of(half: bool, outputs: int, inputs: int) -> int:
    """The number of uint16 in the copies of a weight (outputs, inputs): right operands of the forward product and, in
    bfloat16, of the backward product too.
    """
    if half:
        return up_to(inputs, EDGE) * up_to(outputs, PANEL) + up_to(outputs, 2) * up_to(inputs, PANEL)
    return 2 * inputs * up_to(outputs, PANEL)


def buffer_size(examples: int, half: bool, outputs: int, inputs: int) -> int:
    """The workspace of one layer for a piece of ``examples``, in uint16 numbers."""
    height = up_to(examples, EDGE)
    if not half:
        panels = max(PANEL * max(outputs, inputs), min(GROUP, up_to(inputs, PANEL) * outputs))
        return 2 * max(panels, up_to(height, PANEL) * inputs + SINGLE_ROWS * height, SINGLE_ROWS * (height + inputs))
    lines = EDGE * max(up_to(outputs, EDGE), up_to(inputs, EDGE))
    return lines + height * (up_to(inputs, PANEL) + up_to(outputs, TILE)) + height * up_to(max(outputs, inputs), EDGE)


@njit(cache=True, nogil=True)
def refresh(operands: Operands, place: int, weight: np.ndarray, m: int, k: int) -> None:
    """Pack the current weight float32 (m, k) for the forward product."""
    bfloat16.transposed_words(weight, m, k, k, PANEL, operands.copies[place:])


@njit(cache=True, nogil=True)
def outputs(
    operands: Operands, laid_out: bool, place: int, values: np.ndarray, weight: np.ndarray, bias: np.ndarray,
    relu: bool, out: np.ndarray, n: int, m: int, k: int,
) -> None:  # fmt: skip
    """out (n, m) = values (n, k) weight (m, k)^T + bias (m,), if there is one, then ``relu``.

    Computes some outputs at a time, so they are in cache when the bias is added. If the weight is ``laid_out`` at
    ``place``, it is packed already for all pieces of a batch. Otherwise each panel of it is packed just before its
    product; or, if the values are clearly fewer, the values are packed instead, and the weight is the left operand as
    stored. The sums are bit-identical.
    """
    by_rows = not laid_out and 5 * n * (m + k) < 4 * m * k
    buffer, right = operands.buffer.view(np.float32), operands.copies[place:].view(np.float32)
    if by_rows:
        bfloat16.transposed_words(values, n, k, k, PANEL, buffer)
    size = SINGLE_ROWS if by_rows else PANEL
    for first in range(0, m, size):
        width = min(size, m - first)
        if by_rows:
            block = buffer[up_to(n, PANEL) * k :]
            _by_rows(operands.kernels.single, weight[first * k :], buffer, block, (width, n, k))
            bfloat16.transposed_words(block, width, n, n, m, out[first:])
        elif laid_out:
            panel(
                operands.kernels.single,
                False,
                values,
                right[first * k :],
                out[first:],
                (n, width, k),
                (k, PANEL, m),
                False,
            )
        else:
            bfloat16.transposed_words(weight[first * k :], width, k, k, PANEL, buffer)
            panel(operands.kernels.single, False, values, buffer, out[first:], (n, width, k), (k, PANEL, m), False)
        if bias.size:
            kernels.add_bias(out[first:], bias[first : first + width], n, m, relu)
    if relu and not bias.size:
        kernels.relu(out)


@njit(cache=True, nogil=True)
def _by_rows(kernel: int, a: np.ndarray, panels: np.ndarray, c: np.ndarray, sizes: tuple[int, int, int]) -> None:
    """c (m, n) = a (m, k) b (k, n), with b packed in ``panels``. ``a`` is prefetched, because it comes from memory."""
    m, n, k = sizes
    place = a.ctypes.data
    for line in range(0, m * k, FLOATS):
        ask(np.uint64(place + 4 * line))  # type: ignore[call-arg]
    for column in range(0, n, PANEL):
        shape = m, min(PANEL, n - column), k
        panel(kernel, False, a, panels[column * k :], c[column:], shape, (k, PANEL, n), False)


@njit(cache=True, nogil=True)
def by_weight(
    operands: Operands, by_out: np.ndarray, values: np.ndarray, out: np.ndarray, n: int, m: int, k: int, fresh: bool
) -> None:
    """out (m, k) = by_out (n, m)^T values (n, k), accumulated unless ``fresh``."""
    for first in range(0, m, SINGLE_ROWS):
        rows = min(SINGLE_ROWS, m - first)
        by_weight_rows(operands, by_out[first:], values, out[first * k :], rows, n, m, k, fresh)


@njit(cache=True, nogil=True)
def by_weight_rows(
    operands: Operands, by_out: np.ndarray, values: np.ndarray, out: np.ndarray, rows: int, n: int, m: int, k: int,
    fresh: bool,
) -> None:  # fmt: skip
    """As ``by_weight`` for the first ``rows`` of the m rows, at most SINGLE_ROWS. Computed in two parts, so that few
    kernels are created: a multiple of TILE examples, then the rest.
    """
    across, whole = up_to(n, TILE), n - n % TILE
    left = operands.buffer.view(np.float32)
    bfloat16.transposed_words(by_out, n, rows, m, across, left)
    for first, count in ((0, whole), (whole, n - whole)):
        if count:
            add = not fresh or first > 0
            for column in range(0, k, PANEL):
                right, shape = values[first * k + column :], (rows, min(PANEL, k - column), count)
                panel(operands.kernels.single, False, left[first:], right, out[column:], shape, (across, k, k), add)


@njit(cache=True, nogil=True)
def by_values(
    operands: Operands, by_out: np.ndarray, weight: np.ndarray, out: np.ndarray, n: int, m: int, k: int, fresh: bool
) -> None:
    """out (n, k) = by_out (n, m) weight (m, k), accumulated unless ``fresh``. A very large weight whose panels are read
    often is packed first, which reads it row by row: so each page costs one TLB lookup, not one per panel. So is a
    smaller one if its panels are read very often and its rows lie so that those of a panel conflict in the caches.
    """
    buffer, kernel = operands.buffer.view(np.float32), operands.kernels.single
    in_place = GROUP if n > 4 * PANEL and k % CONFLICTING == 0 else 4 * GROUP
    apart = n >= PANEL and m * k > in_place
    together, rows = (max(1, GROUP // (m * PANEL)) * PANEL, SINGLE_ROWS) if apart else (k, n)
    for first in range(0, k, together):
        end, right, below, beside = min(first + together, k), weight[first:], k, 1
        if apart:
            bfloat16.panels_of_words(right, m, end - first, k, buffer)
            right, below, beside = buffer, PANEL, m
        for row in range(0, n, rows):
            for column in range(first, end, PANEL):
                b_panel, block = right[(column - first) * beside :], out[row * k + column :]
                shape = min(rows, n - row), min(PANEL, end - column), m
                panel(kernel, False, by_out[row * m :], b_panel, block, shape, (m, below, k), not fresh)


@njit(cache=True, nogil=True)
def refresh_half(operands: Operands, place: int, weight: np.ndarray, m: int, k: int, backward: bool) -> None:
    """Round the current weight float32 (m, k) into its copies; the copy for the backward product only if
    ``backward``.
    """
    copies = operands.copies[place:]
    bfloat16.panels_of_transposed(weight, m, k, operands.buffer, copies)
    if backward:
        bfloat16.panels(weight, m, k, up_to(m, 2), copies[up_to(k, EDGE) * up_to(m, PANEL) :])


@njit(cache=True, nogil=True)
def outputs_half(operands: Operands, place: int, values: np.ndarray, out: np.ndarray, n: int, m: int, k: int) -> None:
    """As ``outputs``, in bfloat16, without bias."""
    across, copy = up_to(k, 2), operands.copies[place:]
    bfloat16.rows(values, n, k, across, operands.buffer)
    product(
        operands.kernels.half, True, operands.buffer, copy, out, (n, m, across), (across, PANEL, up_to(k, EDGE)), False
    )


@njit(cache=True, nogil=True)
def by_weight_half(
    operands: Operands, by_out: np.ndarray, values: np.ndarray, out: np.ndarray, n: int, m: int, k: int, fresh: bool
) -> None:
    """As ``by_weight``, in bfloat16."""
    height, buffer = up_to(n, EDGE), operands.buffer
    first = EDGE * up_to(m, EDGE)
    left, right = buffer[first:], buffer[first + height * up_to(m, TILE) :]
    bfloat16.transposed(by_out, n, m, height, buffer, left)
    bfloat16.panels(values, n, k, height, right)
    product(operands.kernels.half, True, left, right, out, (m, k, height), (height, PANEL, height), not fresh)


@njit(cache=True, nogil=True)
def by_values_half(
    operands: Operands, place: int, by_out: np.ndarray, out: np.ndarray, n: int, m: int, k: int, fresh: bool
) -> None:
    """As ``by_values``, in bfloat16, with the weight's copies at ``place``."""
    across, copy = up_to(m, 2), operands.copies[place + up_to(k, EDGE) * up_to(m, PANEL) :]
    bfloat16.rows(by_out, n, m, across, operands.buffer)
    product(operands.kernels.half, True, operands.buffer, copy, out, (n, k, across), (across, PANEL, across), not fresh)
