"""What travels between a trainer's thread and an embedding PS; ``comm.service`` has the tags. Payloads are 32-bit words
where nothing else is said.

========== =============================================================== =============================================
kind       request                                                         reply
========== =============================================================== =============================================
PULL       rows int32 (n,)                                                 float32 (n, width)
PUSH       factor float32, rows int32 (n,), gradients float32 (n, width);  none
           then int32 (n,), where accesses are counted: how many each has
DRAIN      int64: how many PUSH messages of this trainer there are so far  one byte, once so many have been applied
SAVE       JSON: path, limit in seconds, whether in the background         one byte, once the rows may change again
SAVED      nothing                                                         JSON: bytes and checksum, or what went wrong;
                                                                           empty while it is being written
SAMPLES    int64: how many samples all trainers have done, 1 where the PS  JSON: what it has saved by itself since the
           is to save rows by itself, else 0                               last one, a list
ATTACH     nothing                                                         how to map the rows, and in further lines the
                                                                           counts of accesses and the maps of keys;
                                                                           empty lines if they are not shared or there
APPLIED    nothing                                                         int64: name of the count of this trainer's
                                                                           pushes, and how many were applied
FIND       int64 (n, 3): key, number among the keyed features, how often   ids int32 (n,)
           it is looked up now
SWEEP      int64: how many samples all trainers have done, while they      int64 (keyed features, 6): ``KeyCounts``
           pause
========== =============================================================== =============================================
"""

from __future__ import annotations

import numpy as np

TEXT = 8192  # bytes of a reply that is text, padded with zeros
PULL, PUSH, DRAIN, SAVE, SAVED, ATTACH, APPLIED, SAMPLES, FIND, SWEEP = range(10)


def text(value: bytes, out: np.ndarray) -> None:
    """Write a reply that is text into ``out`` uint8 (TEXT,), cut to fit."""
    out[:] = 0
    out[: len(value[:TEXT])] = np.frombuffer(value[:TEXT], np.uint8)


def read_text(reply: np.ndarray) -> str:
    """The text of such a reply."""
    return reply.tobytes().rstrip(b"\0").decode(errors="replace")


def push(factor: float, rows: np.ndarray, gradients: np.ndarray, times: np.ndarray | None = None) -> np.ndarray:
    """The PUSH payload, float32 words; with ``times`` int32 (n,), how many accesses each row has, if not None."""
    counted = 0 if times is None else times.size
    edge = 1 + rows.size + gradients.size
    message = np.empty(edge + counted, np.float32)
    message[0] = factor
    message[1 : 1 + rows.size] = rows.view(np.float32)
    message[1 + rows.size : edge] = gradients.reshape(-1)
    if times is not None:
        message[edge:] = times.view(np.float32)
    return message


def read_push(
    payload: np.ndarray, width: int, *, counted: bool = False
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray | None]:
    """Factor, rows, gradients (n, width) and, if accesses are ``counted``, how many each row has, of a PUSH payload,
    without copies.
    """
    words = payload.view(np.float32)
    count = (words.size - 1) // (1 + width + counted)
    edge = 1 + count * (1 + width)
    rows = words[1 : 1 + count].view(np.int32)
    times = words[edge:].view(np.int32) if counted else None
    return float(words[0]), rows, words[1 + count : edge].reshape(count, width), times


def pulled_bytes(rows: float, width: int) -> float:
    """Payload of pulling ``rows`` rows, request and replies, regardless of the number of PSs."""
    return rows * (4 + 4 * width)


def pushed_bytes(messages: float, rows: float, width: int, *, counted: bool = False) -> float:
    """Payload of so many PUSH messages with so many rows in all, with the accesses of each if they are ``counted``."""
    return 4 * messages + rows * (4 + 4 * width + 4 * counted)
