"""The compiled functions of a program's instructions. A step calls them by their addresses: so only those are compiled
that its program has, each once, and not again as a part of the step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ssmpi.model import elementwise_kernels, field_kernels, kernels, linear, messages, top_k_kernels
from ssmpi.model.brgemm import Kernels
from ssmpi.model.program import (
    ACTIVATE,
    ADD,
    ADD_A,
    ADD_B,
    ADD_C,
    ADD_SUMS,
    BY_A,
    BY_B,
    BY_C,
    COPY,
    DETAIL,
    DROP,
    FLAGS,
    GATE,
    HALF,
    INPUTS,
    INTERACTION,
    KIND,
    LINEAR,
    MACHINE,
    MULTIPLY,
    NORMALIZE,
    OUT,
    OUTPUTS,
    PRELU,
    RECEIVE,
    RECEIVE_KEPT,
    SCALE,
    SEND,
    SEND_KEPT,
    SLICE,
    TAKE,
    THRESHOLD,
    TOP_K,
    A,
    B,
    C,
)
from ssmpi.model.step_args import EXAMPLES, by_value, value
from ssmpi.runtime.compiled.jit import njit

WORDS = types.Array(types.int64, 1, "C")


@njit(cache=True, nogil=True)
def interaction_forward(args: np.ndarray, row: np.ndarray) -> None:
    """INTERACTION: ``kernels.interact``."""
    n, k, m, tables = args[EXAMPLES], row[INPUTS], row[OUTPUTS], row[DETAIL]
    x, vectors = value(args, row[A])[: n * k].reshape(n, k), value(args, row[B])[: n * tables * k].reshape(n, tables, k)
    kernels.interact(x, vectors, value(args, row[OUT])[: n * m].reshape(n, m))


@njit(cache=True, nogil=True)
def interaction_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of INTERACTION."""
    n, k, m, tables, flags = args[EXAMPLES], row[INPUTS], row[OUTPUTS], row[DETAIL], row[FLAGS]
    x, by_x = value(args, row[A])[: n * k].reshape(n, k), by_value(args, row[A])[: n * k].reshape(n, k)
    size, shape = n * tables * k, (n, tables, k)
    vectors, by_vectors = value(args, row[B])[:size].reshape(shape), by_value(args, row[B])[:size].reshape(shape)
    by_out = by_value(args, row[OUT])[: n * m].reshape(n, m)
    kernels.interact_backward(x, vectors, by_out, by_x, by_vectors, flags & ADD_A != 0, flags & ADD_B != 0)


@njit(cache=True, nogil=True)
def copy_forward(args: np.ndarray, row: np.ndarray) -> None:
    """COPY: x to some columns of out."""
    n, k, m = args[EXAMPLES], row[INPUTS], row[OUTPUTS]
    kernels.hand_on(value(args, row[A]), n, k, k, value(args, row[OUT])[row[DETAIL] :], m, False)


@njit(cache=True, nogil=True)
def copy_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of COPY."""
    if row[FLAGS] & BY_A:
        n, k, m, add = args[EXAMPLES], row[INPUTS], row[OUTPUTS], row[FLAGS] & ADD_A != 0
        kernels.hand_on(by_value(args, row[OUT])[row[DETAIL] :], n, k, m, by_value(args, row[A]), k, add)


@njit(cache=True, nogil=True)
def slice_forward(args: np.ndarray, row: np.ndarray) -> None:
    """SLICE: some columns of x."""
    n, k, m = args[EXAMPLES], row[INPUTS], row[OUTPUTS]
    kernels.hand_on(value(args, row[A])[row[DETAIL] :], n, m, k, value(args, row[OUT]), m, False)


@njit(cache=True, nogil=True)
def slice_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of SLICE."""
    if row[FLAGS] & BY_A:
        n, k, m, by_x = args[EXAMPLES], row[INPUTS], row[OUTPUTS], by_value(args, row[A])
        if not row[FLAGS] & ADD_A:
            by_x[: n * k] = 0.0  # the columns beside it
        kernels.hand_on(by_value(args, row[OUT]), n, m, m, by_x[row[DETAIL] :], k, True)


@njit(cache=True, nogil=True)
def gate_forward(args: np.ndarray, row: np.ndarray) -> None:
    """GATE: ``kernels.gate``."""
    out = value(args, row[OUT])[: args[EXAMPLES] * row[OUTPUTS]]
    kernels.gate(value(args, row[A]), value(args, row[B]), value(args, row[C]), out)


@njit(cache=True, nogil=True)
def gate_backward(args: np.ndarray, row: np.ndarray) -> None:
    """Of GATE."""
    flags, by_out = row[FLAGS], by_value(args, row[OUT])[: args[EXAMPLES] * row[OUTPUTS]]
    wanted = flags & BY_A != 0, flags & BY_B != 0, flags & BY_C != 0
    add = flags & ADD_A != 0, flags & ADD_B != 0, flags & ADD_C != 0
    a, b, by_a, by_b = value(args, row[A]), value(args, row[B]), by_value(args, row[A]), by_value(args, row[B])
    kernels.gate_backward(by_out, a, b, by_a, by_b, by_value(args, row[C]), wanted, add)


FUNCTIONS = {
    INTERACTION: (interaction_forward, interaction_backward),
    COPY: (copy_forward, copy_backward),
    SLICE: (slice_forward, slice_backward),
    GATE: (gate_forward, gate_backward),
    TOP_K: (top_k_kernels.top_k_forward, top_k_kernels.top_k_backward),
    THRESHOLD: (top_k_kernels.threshold_forward, top_k_kernels.threshold_backward),
    ADD: (field_kernels.add_forward, field_kernels.add_backward),
    TAKE: (field_kernels.take_forward, field_kernels.take_backward),
    ADD_SUMS: (field_kernels.add_sums_forward, field_kernels.add_sums_backward),
    SCALE: (field_kernels.scale_forward, field_kernels.scale_backward),
    MACHINE: (field_kernels.machine_forward, field_kernels.machine_backward),
    MULTIPLY: (elementwise_kernels.multiply_forward, elementwise_kernels.multiply_backward),
    NORMALIZE: (elementwise_kernels.normalize_forward, elementwise_kernels.normalize_backward),
    ACTIVATE: (elementwise_kernels.activate_forward, elementwise_kernels.activate_backward),
    PRELU: (elementwise_kernels.prelu_forward, elementwise_kernels.prelu_backward),
    DROP: (elementwise_kernels.drop_forward, elementwise_kernels.drop_backward),
    SEND: (messages.send_forward, messages.send_backward),
    RECEIVE: (messages.receive_forward, messages.receive_backward),
    SEND_KEPT: (messages.send_kept_forward, messages.send_kept_backward),
    RECEIVE_KEPT: (messages.receive_kept_forward, messages.receive_kept_backward),
}


def functions_of(row: np.ndarray, by: Kernels) -> tuple[Any, Any]:
    """The functions of an instruction, for the forward and the backward pass; ``by`` are oneDNN's kernels in use."""
    if row[KIND] != LINEAR:
        return FUNCTIONS[int(row[KIND])]
    if row[FLAGS] & HALF:
        return linear.half_forward, linear.half_backward
    return (linear.single_forward, linear.single_backward) if by.single else (linear.blas_forward, linear.blas_backward)


def addresses(table: np.ndarray, by: Kernels, *, backward: bool) -> np.ndarray:
    """int64 (passes, instructions): where the functions of a program's instructions are for the forward and, if asked
    for, the backward pass. Loads or compiles them.
    """
    functions = [functions_of(row, by) for row in table]
    return np.array([[_address(each[k]) for each in functions] for k in range(1 + backward)], np.int64)


def _address(function: Any) -> int:
    function.compile((WORDS, WORDS))
    compiled = function.overloads[WORDS, WORDS]
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return address


@intrinsic
def call(typing: Any, address: Any, args: Any, row: Any) -> Any:  # numba's interface has no types
    """Call an instruction's function."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.call_conv.get_function_type(types.none, (WORDS, WORDS)).as_pointer()
        function = builder.inttoptr(arguments[0], kind)
        status, _ = context.call_conv.call_function(builder, function, types.none, (WORDS, WORDS), arguments[1:])
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.void(types.int64, WORDS, WORDS), generate
