"""The arguments of a compiled step, words of ``KernelArgs``, and how its instructions read them. Compiled.

An instruction is two compiled functions of these words and its ``row`` of the program's table: one for the forward
pass, one for the backward pass. They run on a piece of the batch, of ``args[EXAMPLES]`` examples.
"""

from __future__ import annotations

import numpy as np

from ssmpi.model.brgemm import Kernels
from ssmpi.model.onednn_gemm import Operands
from ssmpi.model.program import BIAS, ROWS_PLACE, WEIGHT
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.compiled.kernel_args import array_at

# Numbers: the addresses of BLAS's and oneDNN's functions; how long to wait for messages; of the piece that is computed
# its examples, whether it is the batch's first one and its last one, and whether there are others; the number of its
# first example in training, or SCORING; and addresses and sizes of its rows and of their gradients.
SGEMM, SINGLE, HALVES, RELEASE, LIMIT, EXAMPLES, FIRST, LAST, IN_PIECES, FIRST_EXAMPLE, ROWS, BY_ROWS = *range(11), 12
SCORING = -1
# Arrays.
COPIES, BUFFER, TABLE, FUNCTIONS, WEIGHTS, GRADIENTS, VALUES, BY_VALUES, DEFERRED, ADDRESSES, FAILED, ESTIMATES = range(
    BY_ROWS + 2, BY_ROWS + 2 + 2 * 12, 2
)


@njit(cache=True, nogil=True)
def value(args: np.ndarray, place: int) -> np.ndarray:
    """The buffer float32 from the start of a value on."""
    if place == ROWS_PLACE:
        return array_at(args, ROWS, np.float32)
    return array_at(args, VALUES, np.float32)[args[EXAMPLES] * place :]


@njit(cache=True, nogil=True)
def by_value(args: np.ndarray, place: int) -> np.ndarray:
    """The buffer float32 from the start of a value's gradient on."""
    if place == ROWS_PLACE:
        return array_at(args, BY_ROWS, np.float32)
    return array_at(args, BY_VALUES, np.float32)[args[EXAMPLES] * place :]


@njit(cache=True, nogil=True)
def weight(args: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The parameters float32 from the start of an instruction's weight on."""
    return array_at(args, WEIGHTS, np.float32)[row[WEIGHT] :]


@njit(cache=True, nogil=True)
def by_weight(args: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The gradients float32 from the start of that of an instruction's weight on."""
    return array_at(args, GRADIENTS, np.float32)[row[WEIGHT] :]


@njit(cache=True, nogil=True)
def bias(args: np.ndarray, row: np.ndarray, size: int) -> np.ndarray:
    """An instruction's bias float32 (size,), or nothing."""
    weights = array_at(args, WEIGHTS, np.float32)
    return weights[row[BIAS] : row[BIAS] + size] if row[BIAS] >= 0 else weights[:0]


@njit(cache=True, nogil=True)
def operands(args: np.ndarray) -> Operands:
    """Those of oneDNN's kernels."""
    kernels = Kernels(args[SINGLE], args[HALVES], args[RELEASE])
    return Operands(kernels, array_at(args, COPIES, np.uint16), array_at(args, BUFFER, np.uint16))
