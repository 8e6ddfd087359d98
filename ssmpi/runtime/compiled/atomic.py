"""Atomic words in shared memory, and sleeping until one changes (Linux's futex), for compiled code without the GIL.
Accesses to words of 32 bits are sequentially consistent: what a thread wrote before it stored a word is seen by whoever
loads that value, and of two threads that each store a word and then load the other's at least one sees the other's
store.
"""

from __future__ import annotations

import platform
import time
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ssmpi.runtime.compiled.jit import njit

WORD = 4  # bytes
ORDER = "seq_cst"
FUTEX = {"x86_64": 202, "ppc64le": 221, "s390x": 238}.get(platform.machine(), 98)  # 98 in Linux's generic table
_WAIT, _WAKE = 0, 1  # among processes too, so without FUTEX_PRIVATE_FLAG
_MONOTONIC = time.CLOCK_MONOTONIC
SECOND = 1_000_000_000  # ns

_syscall: Any = types.ExternalFunction("syscall", types.long_(*[types.long_] * 5))
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))


def _place(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(32).as_pointer())


@intrinsic
def load(typing: Any, address: Any) -> Any:  # numba's interface has no types
    """The uint32 at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_place(builder, arguments[0]), ORDER, WORD)

    return types.uint32(types.int64), generate


@intrinsic
def store(typing: Any, address: Any, value: Any) -> Any:
    """Set the uint32 at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], _place(builder, arguments[0]), ORDER, WORD)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint32), generate


@intrinsic
def load_word(typing: Any, address: Any) -> Any:
    """The int64 at an address, before whatever the same thread reads after it (acquire)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(place, "acquire", 2 * WORD)

    return types.int64(types.int64), generate


@intrinsic
def store_word(typing: Any, address: Any, value: Any) -> Any:
    """Set the int64 at an address, after whatever the same thread wrote before it (release)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], place, "release", 2 * WORD)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@njit(cache=True, nogil=True)
def now() -> int:
    """Nanoseconds of the monotonic clock."""
    found = np.empty(2, np.int64)
    _clock_gettime(_MONOTONIC, found.ctypes.data)
    return found[0] * SECOND + found[1]


@njit(cache=True, nogil=True)
def sleep_while(address: int, value: int, nanoseconds: int) -> None:
    """Sleep while the word is ``value``, until ``wake`` or for this time; it may return early."""
    limit = np.empty(2, np.int64)
    limit[0], limit[1] = nanoseconds // SECOND, nanoseconds % SECOND
    _syscall(FUTEX, address, _WAIT, value, limit.ctypes.data)


@njit(cache=True, nogil=True)
def wake(address: int) -> None:
    """Wake a thread that sleeps on the word."""
    _syscall(FUTEX, address, _WAKE, 1, 0)
