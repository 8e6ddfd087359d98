"""What travels between a trainer's thread and an embedding PS; ``comm.service`` has the tags. Payloads are 32-bit words
where nothing else is said.

========== =============================================================== =============================================
kind       request                                                         reply
========== =============================================================== =============================================
PULL       rows int32 (n,)                                                 float32 (n, width)
PUSH       factor float32, rows int32 (n,), gradients float32 (n, width);  none
           then int32 (n,), where accesses are counted: how many each has
PULL_BAGS  see ``pull_bags``: single rows, and the rows and weights of bags    float32 (rows + bags, width): single
                                                                           rows, then the weighted sum of each bag
PUSH_BAGS  see ``push_bags``: the same with gradients of rows and of bags  none
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
           it is looked up now; in the order of features
PULL_KEYS  see ``pull_keys``: rows as in PULL, keys as in FIND             float32 (rows + keys + rows for ids, width):
                                                                           the rows, those of the keys, anything where
                                                                           the shared one serves; then the ids of the
                                                                           keys, int32, in whole rows
SWEEP      int64: how many samples all trainers have done, while they      int64 (keyed features, 7): ``KeyCounts``
           pause
========== =============================================================== =============================================
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

TEXT = 8192  # bytes of a reply that is text, padded with zeros
PULL, PUSH, DRAIN, SAVE, SAVED, ATTACH, APPLIED, SAMPLES, FIND, SWEEP, PULL_BAGS, PUSH_BAGS, PULL_KEYS = range(13)


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


def pull_keys(rows: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The PULL_KEYS payload, int32 words: an int64, how many keys are ``asked`` for; those, int64 (n, 3); ``rows``."""
    message = np.empty(2 + 6 * len(asked) + len(rows), np.int32)
    edge = len(message) - len(rows)
    message[:2].view(np.int64)[0] = len(asked)
    message[2:edge].view(np.int64)[:] = asked.reshape(-1)
    message[edge:] = rows
    return message


def read_pull_keys(payload: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows and keys of such a payload."""
    words = payload.view(np.int32)
    edge = 2 + 6 * int(words[:2].view(np.int64)[0])
    return words[edge:], words[2:edge].view(np.int64).reshape(-1, 3)


@dataclass(frozen=True)
class PulledBags:
    """What a PULL_BAGS asks for: ``singles`` int32 (m,), rows to send as they are; for b bags, ``ends`` int32 (b + 1,)
    from 0 on, ``rows`` int32 (n,) of their ids and ``weights`` float32 (n,), or none if all are 1.
    """

    singles: np.ndarray
    rows: np.ndarray
    ends: np.ndarray
    weights: np.ndarray


def pull_bags(singles: np.ndarray, rows: np.ndarray, ends: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The PULL_BAGS payload, int32 words: how many single rows and bags, ``singles``, ``ends`` int32 (b,), ``rows``,
    ``weights``.
    """
    head = np.array([len(singles), len(ends)], np.int32)
    return np.concatenate([head, singles, ends, rows, weights.view(np.int32)])


def read_pull_bags(payload: np.ndarray) -> PulledBags:
    """What ``pull_bags`` wrote."""
    words = payload.view(np.int32)
    single, bags = words[:2].tolist()
    ends = np.concatenate([np.zeros(1, np.int32), words[2 + single : 2 + single + bags]])
    rest, count = words[2 + single + bags :], int(ends[-1])
    return PulledBags(words[2 : 2 + single], rest[:count], ends, rest[count:].view(np.float32))


@dataclass(frozen=True)
class PushedBags:
    """The part of a PUSH_BAGS that is of bags: ``rows`` int32 (u,), unique; ``gradients`` float32 (b, width) of the
    bags; ``ends`` int32 (b,), when read (b + 1,) from 0 on; ``places`` int32 (n,): of each id, its row among ``rows``;
    ``weights`` float32 (n,), or none if all are 1.
    """

    rows: np.ndarray
    gradients: np.ndarray
    ends: np.ndarray
    places: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class PushedRows:
    """The part of a PUSH_BAGS that is of single rows, as in PUSH."""

    rows: np.ndarray
    gradients: np.ndarray
    times: np.ndarray | None


def push_bags(
    factor: float, rows: np.ndarray, gradients: np.ndarray, bags: PushedBags, times: np.ndarray | None
) -> np.ndarray:
    """The PUSH_BAGS payload, float32 words: factor; how many single rows, bags and rows of bags; the single rows, their
    gradients and accesses if those are counted; of the bags rows, gradients, ends, places and weights.
    """
    head = np.array([len(rows), len(bags.ends), len(bags.rows)], np.int32)
    integers = [part.view(np.float32) for part in (head, rows)]
    counted = [] if times is None else [times.view(np.float32)]
    of_bags = [bags.rows.view(np.float32), bags.gradients.reshape(-1)]
    of_ids = [bags.ends.view(np.float32), bags.places.view(np.float32), bags.weights]
    return np.concatenate(
        [np.array([factor], np.float32), *integers, gradients.reshape(-1), *counted, *of_bags, *of_ids]
    )


def read_push_bags(payload: np.ndarray, width: int, *, counted: bool) -> tuple[float, PushedRows, PushedBags]:
    """What ``push_bags`` wrote, without copies."""
    words = payload.view(np.float32)
    single, bags, unique = words[1:4].view(np.int32).tolist()
    sizes = np.cumsum([4, single, single * width, single * counted, unique, bags * width, bags])
    rows, gradients, times, of_rows, of_bags, ends = (words[a:b] for a, b in itertools.pairwise(sizes.tolist()))
    bounds = np.concatenate([np.zeros(1, np.int32), ends.view(np.int32)])
    rest, count = words[sizes[-1] :], int(bounds[-1])
    singles = PushedRows(
        rows.view(np.int32), gradients.reshape(single, width), times.view(np.int32) if counted else None
    )
    return float(words[0]), singles, PushedBags(
        of_rows.view(np.int32), of_bags.reshape(bags, width), bounds, rest[:count].view(np.int32), rest[count:]
    )  # fmt: skip


def pulled_bag_bytes(singles: float, bags: float, ids: float, width: int, *, weighted: bool = False) -> float:
    """Payload of one PULL_BAGS and its reply."""
    return 8 + pulled_bytes(singles, width) + bags * (4 + 4 * width) + ids * (4 + 4 * weighted)


def pushed_bag_bytes(bags: float, rows: float, ids: float, width: int, *, weighted: bool = False) -> float:
    """What bags add to a push of single rows: so many bags, their unique rows and their ids."""
    return 12 + rows * 4 + bags * (4 + 4 * width) + ids * (4 + 4 * weighted)


def pulled_bytes(rows: float, width: int) -> float:
    """Payload of pulling ``rows`` rows, request and replies, regardless of the number of PSs."""
    return rows * (4 + 4 * width)


def key_bytes(messages: float, keys: float) -> float:
    """What so many keys in so many messages add to pulling their rows (see ``pulled_bytes``), whose ids come back
    instead of their numbers being sent; ids fill whole rows, less than one more a message.
    """
    return 8 * messages + 24 * keys


def pushed_bytes(messages: float, rows: float, width: int, *, counted: bool = False) -> float:
    """Payload of so many PUSH messages with so many rows in all, with the accesses of each if they are ``counted``."""
    return 4 * messages + rows * (4 + 4 * width + 4 * counted)
