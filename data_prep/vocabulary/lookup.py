"""Tables from tokens to ids, compiled, as ``tables``: an entry is a token and 1 + its id."""

from __future__ import annotations

import numpy as np

from data_prep.raw.fields import Integer
from data_prep.tokens import Tokens
from data_prep.vocabulary.tables import HALF, MIX
from ssmpi.data.schema import MISSING_ID, RARE_ID
from ssmpi.runtime.compiled.cache_lines import ask
from ssmpi.runtime.compiled.jit import njit

LOAD = 0.75  # of tables that do not grow
AHEAD = 16  # rows between the one being looked up and the one whose slot is prefetched


@njit(cache=True, nogil=True)
def _home(token: Integer, slots: Integer) -> Integer:
    """The home slot of a token in a table of any size: the upper half of its hash, scaled."""
    return np.int64(((np.uint64(token) * MIX) >> HALF) * np.uint64(slots) >> HALF)


@njit(cache=True, nogil=True)
def _slot_of(token: Integer, table: np.ndarray) -> Integer:
    """The slot of a token in a table uint64 (slots,), or the free one where it belongs."""
    slot = _home(token, table.size)
    while table[slot] != 0 and table[slot] >> HALF != token:
        slot = slot + 1 if slot + 1 < table.size else 0
    return slot


@njit(cache=True, nogil=True)
def _wide_slot_of(token: Integer, table: np.ndarray) -> Integer:
    """As ``_slot_of`` in a table uint64 (slots, 2)."""
    slot = _home(token, table.shape[0])
    while table[slot, 1] != 0 and table[slot, 0] != token:
        slot = slot + 1 if slot + 1 < table.shape[0] else 0
    return slot


@njit(cache=True, nogil=True)
def _build(tokens: np.ndarray, first_id: int, table: np.ndarray) -> None:
    for i in range(tokens.size):
        token = np.uint64(tokens[i])
        table[_slot_of(token, table)] = (token << HALF) | np.uint64(first_id + i + 1)


@njit(cache=True, nogil=True)
def _build_wide(tokens: np.ndarray, first_id: int, table: np.ndarray) -> None:
    for i in range(tokens.size):
        slot = _wide_slot_of(tokens[i], table)
        table[slot, 0], table[slot, 1] = tokens[i], np.uint64(first_id + i + 1)


def _slots(tokens: int) -> int:
    return int(tokens / LOAD) + 1


def lookup_bytes(tokens: int) -> int:
    """The most bytes of a table of so many tokens."""
    return 16 * _slots(tokens)


def lookup_table(tokens: np.ndarray, first_id: int) -> np.ndarray:
    """A table uint64 (slots,), or for tokens uint64 (slots, 2), for ``look_up``: ``tokens[i]`` has id
    ``first_id + i``."""
    slots = _slots(len(tokens))
    wide = tokens.dtype == np.uint64
    table: np.ndarray = np.zeros((slots, 2) if wide else slots, dtype=np.uint64)
    (_build_wide if wide else _build)(tokens, first_id, table)
    table.flags.writeable = False
    return table


@njit(cache=True, nogil=True)
def _look_up(
    tokens: np.ndarray, missing: np.ndarray, bit: int, table: np.ndarray, reserved: tuple[int, int], ids: np.ndarray
) -> None:
    for row in range(tokens.size):
        if row + AHEAD < tokens.size:
            ask(np.uint64(table[_home(tokens[row + AHEAD], table.size) :].ctypes.data))  # type: ignore[call-arg]  # numba gives the first
        if bit >= 0 and (missing[row] >> bit) & 1:
            ids[row] = reserved[0]
            continue
        entry = table[_slot_of(np.uint64(tokens[row]), table)]
        ids[row] = np.int32((entry & np.uint64(0xFFFFFFFF)) - np.uint64(1)) if entry != 0 else reserved[1]


@njit(cache=True, nogil=True)
def _look_up_wide(
    tokens: np.ndarray, missing: np.ndarray, bit: int, table: np.ndarray, reserved: tuple[int, int], ids: np.ndarray
) -> None:
    for row in range(tokens.size):
        if row + AHEAD < tokens.size:
            ask(np.uint64(table[_home(tokens[row + AHEAD], table.shape[0]) :].ctypes.data))  # type: ignore[call-arg]
        if (missing[row] >> bit) & 1:
            ids[row] = reserved[0]
            continue
        slot = _wide_slot_of(tokens[row], table)
        ids[row] = np.int32(table[slot, 1] - np.uint64(1)) if table[slot, 1] != 0 else reserved[1]


def look_up(tokens: Tokens, table: np.ndarray, *, reserved: bool) -> np.ndarray:
    """Ids int32 (rows,). With ``reserved`` 0 is missing and 1 unseen; otherwise a missing token is token 0, and an
    unseen one gets -1.
    """
    ids = np.empty(len(tokens.values), dtype=np.int32)
    one = _look_up_wide if table.ndim == 2 else _look_up
    numbers = MISSING_ID, RARE_ID if reserved else -1
    one(tokens.values, tokens.missing, tokens.bit if reserved else -1, table, numbers, ids)
    return tokens.by_row(ids)
