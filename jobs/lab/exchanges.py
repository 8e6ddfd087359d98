"""``python -m jobs.lab exchanges``: what a codec costs in whole exchanges, at both ends, without the messages between
them, and what the selection of activations costs (``activations``).

``ssmpi plan --step-ms`` uses these figures: ``sync.easgd.PASSES``. ``ssmpi bench compression`` measures
codecs alone. Decided: those constants, and ``Codec.nanoseconds``. Last run at 3a5bf4cb (exchanges), 3b50cf47
(activations).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from jobs.lab import activations
from ssmpi import compress
from ssmpi.bench.compression import SETTLE, timed
from ssmpi.bench.options import CompressionOptions
from ssmpi.compress import CodecOptions, MirrorReceiver, MirrorSender, ShardCodecs
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.settings import EXAMPLES
from ssmpi.runtime.traffic import Traffic
from ssmpi.sync import RoundOptions, async_ps
from ssmpi.sync.base import merge_difference
from ssmpi.sync.easgd import ClientMirrors, ReplicaMirrors

Turn = Callable[[np.ndarray], tuple[float, ...]]  # seconds of an exchange, after a step float32 (n,)


def measure(options: CompressionOptions) -> None:
    """Print a line for each codec and for each share of activations, and write all of it to ``--output``."""
    if options.output:
        atomic_file.check(options.output)
    for text in options.codecs:
        compress.compile_kernels(compress.parse(text))
    exchanges = measure_exchanges(options.codecs, options.entries, options.rounds)
    print()
    selections = activations.measure(options.rounds)
    if options.output:
        body = {
            "codecs": dict(zip(options.codecs, map(asdict, exchanges), strict=True)),
            "activations": [asdict(selection) for selection in selections],
        }
        atomic_file.write(options.output, json.dumps(body, indent=1) + "\n")


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The costs of a codec in nanoseconds per entry: a push, a mirror, and a round of ``easgd``, both ends each."""

    push_ns: float
    send_ns: float
    receive_ns: float
    easgd_ns: float

    @property
    def easgd_passes(self) -> float:
        """The cost of an ``easgd`` round beyond its two mirrors."""
        return self.easgd_ns - 2 * (self.send_ns + self.receive_ns)


def measure_exchanges(codecs: Sequence[str], entries: int, rounds: int) -> list[Exchange]:
    """Measure each codec: medians over ``rounds`` turns, codecs interleaved. Prints a line for each.

    Vectors take random walks, like weights, and each turn sends the changes through the classes that runs use, so every
    pass over a vector is timed. The first turns, which are dense and compute thresholds, are not.
    """
    turns = {text: [each(text, entries) for each in (push, mirror, elastic)] for text in codecs}
    seconds: dict[str, list[list[float]]] = {text: [] for text in codecs}
    generator = np.random.default_rng(1)
    for turn in range(SETTLE + rounds):
        step = generator.standard_t(3, size=entries).astype(np.float32)
        for text, exchanges in turns.items():
            found = [seconds for exchange in exchanges for seconds in exchange(step)]
            if turn >= SETTLE:
                seconds[text].append(found)
    medians = [(1e9 * np.median(seconds[text], axis=0) / entries).tolist() for text in codecs]
    costs = [Exchange(push_ns=a, send_ns=b, receive_ns=c, easgd_ns=d) for a, b, c, d in medians]
    print(exchange_table(codecs, costs, entries, rounds))
    return costs


def push(text: str, entries: int) -> Turn:
    """A push of one account, which keeps the residual, decoded to a vector by one sync PS."""
    codec, traffic = compress.make(text, CodecOptions(threshold_interval=EXAMPLES), entries), Traffic()
    left, gradients = vectors(2, entries)

    def exchange() -> None:
        async_ps.read_push(async_ps.message([codec.take(left)], 1.0, traffic), gradients)

    def turn(step: np.ndarray) -> tuple[float, ...]:
        np.add(left, step, out=left)
        return (timed(exchange)[0],)

    return turn


def mirror(text: str, entries: int) -> Turn:
    """Both ends of a mirror."""
    weights, whole = vector(entries), [slice(0, entries)]
    own = MirrorSender(ShardCodecs(compress.parse(text, CodecOptions(threshold_interval=EXAMPLES)), whole))
    other = MirrorReceiver(whole)

    def turn(step: np.ndarray) -> tuple[float, ...]:
        np.add(weights, step, out=weights)
        sending, (payload,) = timed(lambda: own.send(weights))
        return sending, timed(lambda: other.receive(payload))[0]

    return turn


def elastic(text: str, entries: int) -> Turn:
    """A trainer's exchange with a center on one sync PS."""
    options = RoundOptions(algorithm="easgd", codec=text, threshold_interval=EXAMPLES)
    alpha, replica, center, center_was, replica_was = options.alpha, *vectors(4, entries)
    own, client = ReplicaMirrors(options, [slice(0, entries)], (), (0, 0)), ClientMirrors(options, entries, (1, 0, 0))

    def exchange() -> None:
        (payload,) = own.replica.send(replica)
        own.receive([client.exchange(payload, center, alpha)])
        own.move(alpha, center_was, replica_was)

    def turn(step: np.ndarray) -> tuple[float, ...]:
        np.add(replica, step, out=replica)
        found = timed(exchange)[0]
        merge_difference(replica, center_was, replica_was, alpha)  # as without a codec
        return (found,)

    return turn


def vector(entries: int) -> np.ndarray:
    """Zeros, float32."""
    return vectors(1, entries)[0]


def vectors(number: int, entries: int) -> list[np.ndarray]:
    """``number`` such vectors."""
    return [np.zeros(entries, np.float32) for _ in range(number)]


def exchange_table(codecs: Sequence[str], costs: Sequence[Exchange], entries: int, rounds: int) -> str:
    """One line per codec; the last column is the cost of a round beyond its mirrors."""
    head = f"{'codec':24}push ns  send ns  receive ns  mirror ns  easgd round ns  besides"
    first = f"whole exchanges, {entries:,} entries, medians of {rounds} turns, one core; nanoseconds an entry"
    lines = [
        f"{text:24}{c.push_ns:7.2f}  {c.send_ns:7.2f}  {c.receive_ns:10.2f}  {c.send_ns + c.receive_ns:9.2f}  "
        f"{c.easgd_ns:14.2f}  {c.easgd_passes:7.2f}"
        for text, c in zip(codecs, costs, strict=True)
    ]
    return "\n".join([first, head, *lines])
