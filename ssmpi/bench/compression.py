"""``ssmpi bench compression``: the cost of a codec on one core, and the size of its payloads.

Gradients are random with heavy tails, like real ones (Student's t with 3 degrees of freedom), new in each turn, and
copied into place, so each encode reads memory that another loop has just written. Codecs are interleaved. Nanoseconds
are CPU time, medians over the turns; refreshes, which compute an exact threshold, are listed separately. Then whole
exchanges are timed at both ends, without the messages between them, and then the selection of activations
(``activations``). ``ssmpi plan --predict`` uses these figures: ``Codec.nanoseconds`` and the algorithms' ``PASSES``.
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
from ssmpi.bench import activations
from ssmpi.bench.options import CompressionOptions
from ssmpi.compress import CodecOptions, MirrorReceiver, MirrorSender, ShardCodecs
from ssmpi.core.settings import EXAMPLES
from ssmpi.core.traffic import Traffic
from ssmpi.files import atomic_file
from ssmpi.sync import pushes
from ssmpi.sync.elastic_mirrors import ClientMirrors, ReplicaMirrors
from ssmpi.sync.exchange import merge_difference
from ssmpi.sync.mean_mirrors import MeanMirrors
from ssmpi.sync.options import RoundOptions

T = TypeVar("T")

SETTLE = 9  # turns: after the refreshes at 1, 2, 4 and 8 the next one is far away
Turn = Callable[[np.ndarray], tuple[float, ...]]  # seconds of an exchange, after a step float32 (n,)


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
    """Print a line for each codec, for its ``exchanges`` and for ``activations``, and write all of it to ``--output``.
    SettingsError for an unknown codec.
    """
    codecs, entries, rounds, out = options.codecs, options.entries, options.rounds, options.output
    if out:
        atomic_file.check(out)
        atomic_file.check_replaceable(out, re.compile(rb'\{\s*"codecs": \['))
    made = {
        text: compress.make(text, compress.CodecOptions(life_span=EXAMPLES, refresh="plain"), entries)
        for text in codecs
    }
    found: dict[str, list[tuple[float, float, float, int]]] = {text: [] for text in codecs}
    left, decoded, generator = np.empty(entries, np.float32), np.zeros(entries, np.float32), np.random.default_rng(1)
    for text in codecs:
        compress.compile_kernels(compress.parse(text))
    for _ in range(rounds):
        gradient = generator.standard_t(3, size=entries).astype(np.float32)
        for text, codec in made.items():
            left[:] = gradient
            seconds, sent = timed(lambda codec=codec: codec.take(left))  # type: ignore[misc]
            back, _ = timed(lambda sent=sent: compress.add(sent, decoded))  # type: ignore[misc]
            found[text].append((seconds, back, sent.size, compress.count_of(sent)[1]))
    costs = [cost(text, np.array(found[text]), entries) for text in codecs]
    print(table(costs, entries, rounds))
    print()
    mirrors = measure_exchanges(codecs, entries, rounds)
    print()
    selections = activations.measure(rounds)
    if out:
        both = [asdict(cost) | asdict(exchange) for cost, exchange in zip(costs, mirrors, strict=True)]
        body = {"codecs": both, "activations": [asdict(selection) for selection in selections]}
        atomic_file.write(out, json.dumps(body, indent=1) + "\n")
    return costs


def cost(codec: str, turns: np.ndarray, entries: int) -> CodecCost:
    """The cost of a codec from its turns, (turns, 4); the first turn computed a threshold."""
    encode, decode, size, sent = np.median(turns[1:], axis=0) / entries
    return CodecCost(
        codec=codec, encode_ns=1e9 * encode, refresh_ns=1e9 * turns[0, 0] / entries, decode_ns=1e9 * decode,
        bytes_an_entry=float(size), density=float(sent),
    )  # fmt: skip


def table(costs: Sequence[CodecCost], entries: int, rounds: int) -> str:
    """One line per codec; ``times less`` is relative to float32."""
    head = f"{'codec':24}encode ns  refresh ns  decode ns   density  bytes an entry  times less"
    lines = [f"{entries:,} entries, medians of {rounds - 1} turns, one core; nanoseconds an entry", head]
    for c in costs:
        lines.append(
            f"{c.codec:24}{c.encode_ns:9.2f}  {c.refresh_ns:10.2f}  {c.decode_ns:9.2f}  {c.density:8.4f}  "
            f"{c.bytes_an_entry:14.4f}  {4 / c.bytes_an_entry:10.1f}"
        )
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The costs of a codec in nanoseconds per entry: a push (both ends), a mirror (both ends), a round of ``easgd``
    (both ends), and a round of ``ma`` (each of two trainers).
    """

    push_ns: float
    send_ns: float
    receive_ns: float
    easgd_ns: float
    ma_ns: float

    @property
    def easgd_passes(self) -> float:
        """The cost of an ``easgd`` round beyond its two mirrors."""
        return self.easgd_ns - 2 * (self.send_ns + self.receive_ns)

    @property
    def ma_passes(self) -> float:
        """The cost of an ``ma`` round beyond its mirrors: each of two trainers sends its replica and half of the mean,
        and receives half of each.
        """
        return self.ma_ns - 1.5 * self.send_ns - self.receive_ns


def measure_exchanges(codecs: Sequence[str], entries: int, rounds: int) -> list[Exchange]:
    """Measure each codec: medians over ``rounds`` turns, codecs interleaved. Prints a line for each.

    Vectors take random walks, like weights, and each turn sends the changes through the classes that runs use, so every
    pass over a vector is timed. The first turns, which are dense and compute thresholds, are not.
    """
    turns = {text: [each(text, entries) for each in (push, mirror, elastic, mean)] for text in codecs}
    seconds: dict[str, list[list[float]]] = {text: [] for text in codecs}
    generator = np.random.default_rng(1)
    for turn in range(SETTLE + rounds):
        step = generator.standard_t(3, size=entries).astype(np.float32)
        for text, exchanges in turns.items():
            found = [seconds for exchange in exchanges for seconds in exchange(step)]
            if turn >= SETTLE:
                seconds[text].append(found)
    medians = [(1e9 * np.median(seconds[text], axis=0) / entries).tolist() for text in codecs]
    costs = [Exchange(push_ns=a, send_ns=b, receive_ns=c, easgd_ns=d, ma_ns=e) for a, b, c, d, e in medians]
    print(exchange_table(codecs, costs, entries, rounds))
    return costs


def push(text: str, entries: int) -> Turn:
    """A push of one account, which keeps the residual, decoded to a vector by one sync PS."""
    codec, traffic = compress.make(text, CodecOptions(life_span=EXAMPLES), entries), Traffic()
    left, gradients = vectors(2, entries)

    def exchange() -> None:
        pushes.read_push(pushes.message([codec.take(left)], 1.0, traffic), gradients)

    def turn(step: np.ndarray) -> tuple[float, ...]:
        np.add(left, step, out=left)
        return (timed(exchange)[0],)

    return turn


def mirror(text: str, entries: int) -> Turn:
    """Both ends of a mirror, as in a pull."""
    weights, whole = vector(entries), [[slice(0, entries)]]
    own = MirrorSender(ShardCodecs(compress.parse(text, CodecOptions(life_span=EXAMPLES)), whole))
    other = MirrorReceiver(whole)

    def turn(step: np.ndarray) -> tuple[float, ...]:
        np.add(weights, step, out=weights)
        sending, (payload,) = timed(lambda: own.send(weights))
        return sending, timed(lambda: other.receive(payload))[0]

    return turn


def elastic(text: str, entries: int) -> Turn:
    """A trainer's exchange with a center on one sync PS."""
    options = RoundOptions(algorithm="easgd", codec=text, life_span=EXAMPLES)
    whole, alpha, replica, center, center_was, replica_was = slice(0, entries), options.alpha, *vectors(4, entries)
    own, client = ReplicaMirrors(options, [[whole]], (), (0, 0)), ClientMirrors(options, [[whole]], (1, 0, 0))

    def exchange() -> None:
        (payload,) = own.replica.send(replica, 0)
        own.receive([client.exchange(0, payload, center, alpha)], 0)
        own.move(whole, alpha, center_was, replica_was)

    def turn(step: np.ndarray) -> tuple[float, ...]:
        np.add(replica, step, out=replica)
        found = timed(exchange)[0]
        merge_difference(replica, center_was, replica_was, alpha)  # as without a codec
        return (found,)

    return turn


def mean(text: str, entries: int) -> Turn:
    """A round of one of two trainers; the other one takes the opposite steps."""
    options = RoundOptions(algorithm="ma", codec=text, life_span=EXAMPLES)
    both = [MeanMirrors(options, (), (rank, 2), vector(entries)) for rank in range(2)]
    replicas, was, means = vectors(2, entries), vectors(2, entries), vectors(2, entries)

    def exchange() -> None:
        for rank, own in enumerate(both):
            both[1 - rank].receive_replica(rank, own.replica.send(replicas[rank], 0)[1 - rank], 0)
        for rank, own in enumerate(both):
            both[1 - rank].receive_mean(rank, own.answer((True, True), 0), 0)
        for rank, own in enumerate(both):
            means[rank] = own.move(0, options.alpha, was[rank])

    def turn(step: np.ndarray) -> tuple[float, ...]:
        np.add(replicas[0], step, out=replicas[0])
        np.add(replicas[1], step[::-1], out=replicas[1])
        found = timed(exchange)[0] / 2
        for replica, mean_was, replica_was in zip(replicas, means, was, strict=True):
            merge_difference(replica, mean_was, replica_was, options.alpha)
        return (found,)

    return turn


def vector(entries: int) -> np.ndarray:
    """Zeros, float32."""
    return vectors(1, entries)[0]


def vectors(number: int, entries: int) -> list[np.ndarray]:
    """``number`` such vectors."""
    return [np.zeros(entries, np.float32) for _ in range(number)]


def exchange_table(codecs: Sequence[str], costs: Sequence[Exchange], entries: int, rounds: int) -> str:
    """One line per codec; the last columns are the cost of a round beyond its mirrors."""
    head = f"{'codec':24}push ns  send ns  receive ns  mirror ns  easgd round ns  besides  ma round ns  besides"
    first = f"whole exchanges, {entries:,} entries, medians of {rounds} turns, one core; nanoseconds an entry"
    lines = [
        f"{text:24}{c.push_ns:7.2f}  {c.send_ns:7.2f}  {c.receive_ns:10.2f}  {c.send_ns + c.receive_ns:9.2f}  "
        f"{c.easgd_ns:14.2f}  {c.easgd_passes:7.2f}  {c.ma_ns:11.2f}  {c.ma_passes:7.2f}"
        for text, c in zip(codecs, costs, strict=True)
    ]
    return "\n".join([first, head, *lines])
