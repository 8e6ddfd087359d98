"""``ssmpi bench compression``: the cost of a codec on one core, and the size of its payloads.

Gradients are random with heavy tails, like real ones (Student's t with 3 degrees of freedom), new in each turn, and
copied into place, so each encode reads memory that another loop has just written. Codecs are interleaved. Nanoseconds
are CPU time, medians over the turns; refreshes, which compute an exact threshold, are listed separately.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np

from ssmpi import compress
from ssmpi.bench.options import CompressionOptions
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.settings import EXAMPLES

SETTLE = 9  # turns: after the refreshes at 1, 2, 4 and 8 the next one is far away
T = TypeVar("T")


def timed(body: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of this thread, and the result of ``body``."""
    began = time.thread_time()
    result = body()
    return time.thread_time() - began, result


@dataclass(frozen=True, kw_only=True)
class CodecCost:
    """The cost of a codec per entry: nanoseconds to encode, between refreshes and in one, and to decode; bytes sent,
    and the share of entries sent.
    """

    codec: str
    encode_ns: float
    refresh_ns: float
    decode_ns: float
    bytes_an_entry: float
    density: float


def measure(options: CompressionOptions) -> list[CodecCost]:
    """Print a line for each codec, and write all of it to ``--output``. SettingsError for an unknown codec."""
    codecs, entries, rounds, out = options.codecs, options.entries, options.rounds, options.output
    if out:
        atomic_file.check(out)
        atomic_file.check_replaceable(out, re.compile(rb'\{\s*"codecs": \['))
    made = {text: compress.make(text, compress.CodecOptions(threshold_interval=EXAMPLES), entries) for text in codecs}
    found: dict[str, list[tuple[float, float, float, int]]] = {text: [] for text in codecs}
    left, decoded, generator = np.empty(entries, np.float32), np.zeros(entries, np.float32), np.random.default_rng(1)
    for text in codecs:
        compress.compile_kernels(compress.parse(text))
    for _ in range(SETTLE + rounds):
        gradient = generator.standard_t(3, size=entries).astype(np.float32)
        for text, codec in made.items():
            left[:] = gradient
            seconds, sent = timed(lambda codec=codec: codec.take(left))  # type: ignore[misc]
            back, _ = timed(lambda sent=sent: compress.add(sent, decoded))  # type: ignore[misc]
            found[text].append((seconds, back, sent.size, compress.count_of(sent)[1]))
    costs = [cost(text, np.array(found[text]), entries) for text in codecs]
    print(table(costs, entries, rounds))
    if out:
        atomic_file.write(out, json.dumps({"codecs": [asdict(cost) for cost in costs]}, indent=1) + "\n")
    return costs


def cost(codec: str, turns: np.ndarray, entries: int) -> CodecCost:
    """The cost of a codec from its turns, (turns, 4); the first turn computed a threshold."""
    encode, decode, size, sent = np.median(turns[SETTLE:], axis=0) / entries
    return CodecCost(
        codec=codec, encode_ns=1e9 * encode, refresh_ns=1e9 * turns[0, 0] / entries, decode_ns=1e9 * decode,
        bytes_an_entry=float(size), density=float(sent),
    )  # fmt: skip


def table(costs: Sequence[CodecCost], entries: int, rounds: int) -> str:
    """One line per codec; ``times less`` is relative to float32."""
    head = f"{'codec':24}encode ns  refresh ns  decode ns   density  bytes an entry  times less"
    lines = [f"{entries:,} entries, medians of {rounds} turns, one core; nanoseconds an entry", head]
    for c in costs:
        lines.append(
            f"{c.codec:24}{c.encode_ns:9.2f}  {c.refresh_ns:10.2f}  {c.decode_ns:9.2f}  {c.density:8.4f}  "
            f"{c.bytes_an_entry:14.4f}  {4 / c.bytes_an_entry:10.1f}"
        )
    return "\n".join(lines)
