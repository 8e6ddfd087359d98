"""``ssmpi bench compression``: what a codec costs, on one core, and how long its payloads are; and what a round by
mirrors costs with it, on a trainer and a sync PS together.

Gradients are made up, with the heavy tails of real ones (Student's t of 3 degrees of freedom), anew in each turn, and
copied over what was left before; so each encode reads memory that another loop has just written. Codecs take turns.
Nanoseconds are those of the processor, medians over the turns; a refresh, which looks for an exact threshold, apart.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ssmpi import compress
from ssmpi.core import atomic_file
from ssmpi.core.settings import EXAMPLES, within
from ssmpi.core.traffic import Traffic
from ssmpi.sync.base import merge_difference
from ssmpi.sync.elastic_mirrors import ClientMirrors, ReplicaMirrors
from ssmpi.sync.mirrors import whole_codec
from ssmpi.sync.options import DENSE, RoundOptions

ALPHA = 0.5


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a codec: nanoseconds an entry to encode, between refreshes and in one, to decode, and of an elastic round by
    mirrors at both ends; bytes and entries sent of each entry.
    """

    codec: str
    encode_ns: float
    refresh_ns: float
    decode_ns: float
    bytes_an_entry: float
    density: float
    round_ns: float


def measure(codecs: Sequence[str], entries: int, rounds: int, out: Path | None) -> list[Cost]:
    """Print a line for each codec; all of it as JSON in ``out``. SettingsError for a codec that there is not."""
    within("--entries", entries, 1, 2**30)
    within("--rounds", rounds, 2, EXAMPLES)
    if out:
        atomic_file.check(out)
    made = {
        text: compress.make(text, compress.CodecOptions(life_span=EXAMPLES, refresh="plain"), entries)
        for text in codecs
    }
    found: dict[str, list[tuple[float, float, float, int, float]]] = {text: [] for text in codecs}
    exchanges = {text: Exchange(text, entries) for text in codecs if text != DENSE}
    left, decoded, generator = np.empty(entries, np.float32), np.zeros(entries, np.float32), np.random.default_rng(1)
    for text in codecs:
        compress.compile_kernels(text)
    for _ in range(rounds):
        gradient = generator.standard_t(3, size=entries).astype(np.float32)
        for text, codec in made.items():
            left[:] = gradient
            seconds, sent = timed(lambda codec=codec: codec.take(left))  # type: ignore[misc]
            back, _ = timed(lambda sent=sent: compress.add(sent, decoded))  # type: ignore[misc]
            size, count = sent.size, compress.count_of(sent)[1]
            both = timed(partial(exchanges[text].run, gradient))[0] if text in exchanges else 0.0
            found[text].append((seconds, back, size, count, both))
    costs = [cost(text, np.array(found[text]), entries) for text in codecs]
    print(table(costs, entries, rounds))
    if out:
        atomic_file.write(out, json.dumps([asdict(each) for each in costs], indent=1) + "\n")
    return costs


class Exchange:
    """A trainer and a sync PS, with the codec ``text``; the replica has learned since the last exchange."""

    def __init__(self, text: str, entries: int) -> None:
        options = RoundOptions(codec=text, life_span=EXAMPLES, refresh="plain")
        self._own = ReplicaMirrors(options, [[slice(0, entries)]], (), (0, 0), entries)
        self._server = ClientMirrors(options, [whole_codec(entries)])
        self._replica, self._center = np.zeros(entries, np.float32), np.zeros(entries, np.float32)

    def run(self, learned: np.ndarray) -> np.ndarray:
        """One exchange of the whole vector; the replica after it."""
        self._replica += learned
        (payload,) = self._own.told.tell(self._replica, 0, Traffic())
        self._own.hear([self._server.exchange(0, payload, self._center, ALPHA)], 0)
        reference, snapshot = self._own.move(slice(0, learned.size), ALPHA)
        merge_difference(self._replica, reference, snapshot, ALPHA)
        return self._replica


def timed(body: Callable[[], np.ndarray | int]) -> tuple[float, np.ndarray]:
    """Seconds of this thread on a processor, and what came of it."""
    began = time.thread_time()
    result = body()
    return time.thread_time() - began, np.asarray(result)


def cost(codec: str, turns: np.ndarray, entries: int) -> Cost:
    """Of its turns, (turns, 5), the first of which found a threshold."""
    encode, decode, size, sent, both = np.median(turns[1:], axis=0) / entries
    return Cost(
        codec=codec, encode_ns=1e9 * encode, refresh_ns=1e9 * turns[0, 0] / entries, decode_ns=1e9 * decode,
        bytes_an_entry=float(size), density=float(sent), round_ns=1e9 * both,
    )  # fmt: skip


def table(costs: Sequence[Cost], entries: int, rounds: int) -> str:
    """One line a codec; ``times less`` is against float32."""
    head = f"{'codec':24}encode ns  refresh ns  decode ns  round ns   density  bytes an entry  times less"
    lines = [f"{entries:,} entries, medians of {rounds - 1} turns, one core; nanoseconds an entry", head]
    for c in costs:
        lines.append(
            f"{c.codec:24}{c.encode_ns:9.2f}  {c.refresh_ns:10.2f}  {c.decode_ns:9.2f}  {c.round_ns:8.2f}  "
            f"{c.density:8.4f}  {c.bytes_an_entry:14.4f}  {4 / c.bytes_an_entry:10.1f}"
        )
    return "\n".join(lines)
