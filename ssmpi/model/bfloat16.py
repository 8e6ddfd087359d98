"""Packs float32 matrices as operands of block products, mostly in bfloat16; compiled, and run without the GIL.

A bfloat16 number is the upper half of a float32 number, rounded to nearest, and stored as uint16. The left operand of a
product is row-major. The right operand, k by n, is stored in panels of PANEL columns with pairs of rows interleaved,
``[n / PANEL][k / 2][PANEL][2]``, in the order in which instructions for dot products of pairs read it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ssmpi.model.kernels import move
from ssmpi.runtime.compiled.cache_lines import ask
from ssmpi.runtime.compiled.jit import njit

PANEL = 64  # columns: four vectors of 16 float32 sums
TILE = 16  # words of 32 bits in a vector, and vectors in a square transposed in registers
EDGE = 2 * TILE  # panels are padded to a multiple of this many rows, so that transposed squares fit
PAGES_AHEAD = 8192  # bytes, of memory that is read in order


@njit(cache=True, nogil=True, inline="always")
def up_to(size: int, multiple: int) -> int:
    """``size`` rounded up to a multiple of ``multiple``."""
    return -(-size // multiple) * multiple


@intrinsic
def _pair(typing: Any, upper: Any, lower: Any) -> Any:
    """Two float32 numbers rounded to bfloat16 (nearest, ties to even) in one word, ``upper`` in its upper half. NaN
    stays.
    """
    signature = types.uint32(types.float32, types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)

        def number(value: int) -> Any:
            return ir.Constant(word, value)

        def half(value: Any) -> Any:
            bits = builder.bitcast(value, word)
            odd = builder.and_(builder.lshr(bits, number(16)), number(1))
            nearest = builder.add(bits, builder.add(odd, number(0x7FFF)))
            nan = builder.fcmp_unordered("uno", value, value)
            return builder.select(nan, builder.or_(bits, number(0x400000)), nearest)

        first, second = (half(value) for value in arguments)
        return builder.or_(builder.lshr(first, number(16)), builder.and_(second, number(0xFFFF0000)))

    return signature, generate


@njit(cache=True, nogil=True)
def rows(values: np.ndarray, n: int, k: int, width: int, out: np.ndarray) -> None:
    """out uint16 (n, width) = values float32 (n, k), both flat, each row padded with zeros."""
    for i in range(n):
        given, target = values[i * k : (i + 1) * k], out[i * width : (i + 1) * width]
        for j in range(k):
            target[j] = np.uint16(_pair(given[j], np.float32(0.0)))  # type: ignore[call-arg]  # numba gives the first
        for j in range(k, width):
            target[j] = 0


@njit(cache=True, nogil=True)
def _line(values: np.ndarray, n: int, k: int, row: int, first: int, count: int, out: np.ndarray) -> None:
    """out uint32 (count,): rows ``row`` and ``row`` + 1 of values float32 (n, k), interleaved from column ``first`` on;
    0 for a row beyond n.
    """
    upper = values[row * k + first : row * k + first + count]
    if row + 1 < n:
        lower = values[(row + 1) * k + first : (row + 1) * k + first + count]
        for j in range(count):
            out[j] = _pair(upper[j], lower[j])  # type: ignore[call-arg]
    elif row < n:
        for j in range(count):
            out[j] = _pair(upper[j], np.float32(0.0))  # type: ignore[call-arg]
    else:
        out[:count] = 0


@njit(cache=True, nogil=True)
def panels(values: np.ndarray, n: int, k: int, height: int, out: np.ndarray) -> None:
    """Pack values float32 (n, k) as a right operand of n rows and k columns, padded with zeros to ``height`` rows
    (even).
    """
    words = out.view(np.uint32)
    for row in range(0, height, 2):
        for column in range(0, k, PANEL):
            place = (column * height + row * PANEL) // 2
            _line(values, n, k, row, column, min(PANEL, k - column), words[place : place + PANEL])


@njit(cache=True, nogil=True)
def panels_of_transposed(values: np.ndarray, n: int, k: int, lines: np.ndarray, out: np.ndarray) -> None:
    """Pack values float32 (n, k) as a right operand of k rows and n columns, with k padded to a multiple of EDGE.

    ``lines`` is scratch: uint16, at least TILE rows of the padded k.
    """
    height = up_to(k, EDGE)
    words, target = lines.view(np.uint32), out.view(np.uint32)
    for row in range(0, n, TILE):
        rows(values[row * k :], min(TILE, n - row), k, height, lines)
        panel = (row - row % PANEL) * height // 2 + row % PANEL
        for word in range(0, height // 2, TILE):
            _square(words[word:], height // 2, target[panel + word * PANEL :], PANEL)


@njit(cache=True, nogil=True)
def transposed(values: np.ndarray, n: int, k: int, width: int, lines: np.ndarray, out: np.ndarray) -> None:
    """out uint16 (k up to a multiple of TILE, width) = values float32 (n, k) transposed, both flat, each row padded
    with zeros; ``width`` is n rounded up to a multiple of EDGE.

    ``lines`` is scratch: uint16, at least EDGE rows of k rounded up to a multiple of TILE.
    """
    across = up_to(k, TILE)
    words, target = lines.view(np.uint32), out.view(np.uint32)
    for row in range(0, width, EDGE):
        for pair in range(TILE):
            _line(values, n, k, row + 2 * pair, 0, k, words[pair * across : pair * across + k])
        for column in range(0, across, TILE):
            _square(words[column:], across, target[(column * width + row) // 2 :], width // 2)


@njit(cache=True, nogil=True)
def transposed_words(values: np.ndarray, n: int, k: int, across: int, panel: int, out: np.ndarray) -> None:
    """Transpose values float32 (n, k), with a stride of ``across`` floats from row to row, into panels of ``panel``
    columns, ``[n / panel][k][panel]``, of a flat ``out`` of any type. ``panel`` is a multiple of TILE unless there is
    only one panel. The padding beside the last columns is not written.

    The next TILE rows are prefetched meanwhile.
    """
    words, target, source, place = values.view(np.uint32), out.view(np.uint32), values.ctypes.data, out.ctypes.data
    whole = k - k % TILE
    for row in range(0, n, TILE):
        begin, rows = row // panel * panel * k + row % panel, min(TILE, n - row)
        done = whole if rows == TILE else 0
        for column in range(0, done, TILE):
            first = source + 4 * (row * across + column)
            for i in range(TILE, 2 * TILE):
                ask(np.uint64(first + 4 * i * across))  # type: ignore[call-arg]
            goal = place + 4 * (begin + column * panel)
            _transpose(np.uintp(first), across, np.uintp(goal), panel)  # type: ignore[call-arg]
        for i in range(rows):
            for j in range(done, k):
                target[begin + j * panel + i] = words[(row + i) * across + j]


@njit(cache=True, nogil=True)
def panels_of_words(values: np.ndarray, n: int, k: int, across: int, out: np.ndarray) -> None:
    """Pack values float32 (n, k), with a stride of ``across`` floats from row to row, into panels of PANEL columns:
    ``[k / PANEL][n][PANEL]``.

    Row by row, so that each page of ``values`` is visited once, not once per panel.
    """
    source, target, whole = values.ctypes.data, out.ctypes.data, k - k % TILE
    for row in range(n):
        begin = row * across
        ask(np.uint64(source + 4 * begin + PAGES_AHEAD))  # type: ignore[call-arg]
        for column in range(0, whole, TILE):
            place = column // PANEL * PANEL * n + row * PANEL + column % PANEL
            move(np.uintp(source + 4 * (begin + column)), np.uintp(target + 4 * place))
        for column in range(whole, k):
            out[column // PANEL * PANEL * n + row * PANEL + column % PANEL] = values[begin + column]


@njit(cache=True, nogil=True)
def _square(words: np.ndarray, across: int, out: np.ndarray, stride: int) -> None:
    """Transpose the TILE x TILE words of 32 bits at the start of ``words`` to the start of ``out``."""
    _transpose(words.ctypes.data, across, out.ctypes.data, stride)  # type: ignore[call-arg]


@intrinsic
def _transpose(typing: Any, source: Any, across: Any, target: Any, stride: Any) -> Any:
    """Transpose TILE x TILE words of 32 bits, by addresses; ``across`` and ``stride`` are the row strides in words."""
    signature = types.void(types.uintp, types.intp, types.uintp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(32), TILE)

        def place(address: Any, words: Any, row: int) -> Any:
            size = ir.Constant(words.type, 4 * row)
            return builder.inttoptr(builder.add(address, builder.mul(words, size)), vector.as_pointer())

        found = []
        for row in range(TILE):
            found.append(builder.load(place(arguments[0], arguments[1], row)))
            found[-1].align = 4
        distance = 1
        while distance < TILE:  # swap squares of ``distance`` words above the diagonal with those below
            upper = [lane + (TILE - distance if lane & distance else 0) for lane in range(TILE)]
            lower = [lane + (TILE if lane & distance else distance) for lane in range(TILE)]
            masks = [ir.Constant(ir.VectorType(ir.IntType(32), TILE), lanes) for lanes in (upper, lower)]
            for row in (row for row in range(TILE) if not row & distance):
                pair = found[row], found[row + distance]
                found[row], found[row + distance] = (builder.shuffle_vector(*pair, mask) for mask in masks)
            distance *= 2
        for row, value in enumerate(found):
            builder.store(value, place(arguments[2], arguments[3], row)).align = 4
        return context.get_dummy_value()

    return signature, generate
