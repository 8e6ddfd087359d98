"""``ssmpi bench tables``: pulls and pushes of dynamic tables beside static ones of the same rows, in one process.

Ids are drawn from Zipf's law; each is the key of a row of the dynamic tables too, so that all contenders look up and
update the same values, which is checked. Static rows are ordered by frequency, as a vocabulary has them, as keys
arrived, as the dynamic tables have them, and at random: what lies between the first two is the order of rows, the rest
is the map. By messages, trainer and PS are one thread, and its time is that of both ends.

In a turn each contender pulls and pushes the same batches, and the contenders' rows evict each other's from the caches.
Seconds are CPU time of the thread. Figures are medians over the turns, ratios medians of the turns' ratios.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from ssmpi.bench.compression import timed
from ssmpi.bench.options import TablesOptions
from ssmpi.data.batch import Batch
from ssmpi.embedding.client import Lookups, PrefetchedRows
from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.key_kernels import RESERVED
from ssmpi.embedding.placement import Placement, place
from ssmpi.embedding.shards import local_tables
from ssmpi.embedding.table import Arena, EmbeddingOptions, RowOptions
from ssmpi.runtime.compiled.hash_table import mix
from ssmpi.runtime.compiled.jit import njit
from ssmpi.runtime.files import atomic_file
from ssmpi.runtime.row_layout import RowLayout

STATIC, ARRIVAL, RANDOM, DYNAMIC = "static, by frequency", "static, as keys arrived", "static, at random", "dynamic"
STATIC_SENT, DYNAMIC_SENT = "static, by messages", "dynamic, by messages"
BESIDE = {DYNAMIC_SENT: STATIC_SENT, STATIC_SENT: STATIC_SENT}  # whom a contender is compared with, if not STATIC
EXAMPLES_A_TURN = 4096
BATCHES = 16  # of the largest size, drawn in advance


@dataclass(frozen=True, kw_only=True)
class TableCost:
    """Nanoseconds an id of one contender; ``ratio``: how fast pull with push is, relative to static by frequency, both
    by messages or neither.
    """

    batch: int
    contender: str
    pull_ns: float
    push_ns: float
    pull_ratio: float
    ratio: float


class Contender:
    """One kind of tables, in this process or ``sent`` by messages, with a thread's lookups."""

    def __init__(self, options: RowOptions, placement: Placement, *, sent: bool = False) -> None:
        self.arena = Arena(options, placement, 0, seed=1)
        tables = local_tables(self.arena, mapped=not sent)
        self._lookups = Lookups(tables, 0, PrefetchedRows(lambda: False))

    def turn(self, batches: Sequence[Batch], gradients: np.ndarray) -> tuple[float, float]:
        """CPU seconds of the pulls and of the pushes of ``batches``."""
        pulling = pushing = 0.0
        arriving = self._lookups.prefetched(batches)
        for _ in batches:
            seconds, (_, lookup) = timed(partial(next, arriving))
            pulling += seconds
            pushing += timed(partial(self._lookups.push, lookup, gradients))[0]
        return pulling, pushing

    def values(self, batch: Batch) -> np.ndarray:
        """The rows of a batch, float32 (batch, features, width)."""
        ((_, lookup),) = self._lookups.prefetched([batch])
        return lookup.values.copy()


def measure(options: TablesOptions) -> list[TableCost]:
    """Print a line for each contender and batch size, and write all of it to ``--output``."""
    if options.output:
        atomic_file.check(options.output)
        atomic_file.check_replaceable(options.output, re.compile(rb'\[\s*\{\s*"batch": '))
    generator = np.random.default_rng(1)
    ids = zipf(generator, options, max(max(options.batch), EXAMPLES_A_TURN // BATCHES) * BATCHES)
    orders = orders_of(generator, ids, options.rows)
    contenders = contenders_of(options, orders[ARRIVAL])
    costs = [cost for batch in options.batch for cost in of_size(contenders, batch, ids, orders, options.turns)]
    print(table(costs, options))
    if options.output:
        atomic_file.write(options.output, json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")
    return costs


def zipf(generator: np.random.Generator, options: TablesOptions, examples: int) -> np.ndarray:
    """Ids of the given number of examples, int32 (examples, features), 0 the most frequent: Zipf's law by inverting its
    continuous distribution function.
    """
    power, draws = 1.0 - options.skew, generator.random((examples, options.features))
    edge = (options.rows + 1.0) ** power
    ranks = np.exp(np.log1p(draws * (edge - 1.0)) / power) if power else (options.rows + 1.0) ** draws
    return np.minimum(ranks - 1.0, options.rows - 1).astype(np.int32)


def arrival(generator: np.random.Generator, ids: np.ndarray, rows: int) -> np.ndarray:
    """The place of each id among those of its feature in the order in which they come, int32 (rows, features); those
    that do not come are last, in a random order.
    """
    places = np.empty((rows, ids.shape[1]), np.int32)
    for feature, column in enumerate(ids.T):
        found, first = np.unique(column, return_index=True)
        rest = generator.permutation(np.setdiff1d(np.arange(rows), found))
        places[np.concatenate([found[np.argsort(first)], rest]), feature] = np.arange(rows)
    return places


def orders_of(generator: np.random.Generator, ids: np.ndarray, rows: int) -> dict[str, np.ndarray]:
    """The place of each id among those of its feature, int32 (rows, features), for each kind of static tables."""
    by_frequency = np.repeat(np.arange(rows, dtype=np.int32)[:, None], ids.shape[1], axis=1)
    at_random = generator.permuted(by_frequency, axis=0)
    by_arrival = arrival(generator, ids, rows)
    return {STATIC: by_frequency, ARRIVAL: by_arrival, RANDOM: at_random, STATIC_SENT: by_frequency}


def keys_of(ids: np.ndarray) -> np.ndarray:
    """A key for each id, int64, not 0."""
    return mixed(ids.astype(np.uint64).reshape(-1) + np.uint64(1)).view(np.int64).reshape(ids.shape)


def contenders_of(options: TablesOptions, by_arrival: np.ndarray) -> dict[str, Contender]:
    """All contenders by name, with rows of zeros: the dynamic tables have given all of them to keys, as they came."""
    rows, features, dynamic = options.rows, options.features, DynamicOptions(keys=options.rows)
    static_rows = place([RESERVED + rows] * features, 1)
    keyed_rows = place([0] * features, 1, dynamic, [f"C{k + 1}" for k in range(features)])

    def of(placement: Placement, *, sent: bool = False) -> Contender:
        settings = EmbeddingOptions(prefetch=False, shared_memory=not sent)
        if placement.keyed:
            settings = replace(settings, dynamic=dynamic)
        return Contender(RowOptions(settings, RowLayout(options.dim)), placement, sent=sent)

    made = {name: of(static_rows) for name in (STATIC, ARRIVAL, RANDOM)}
    made[DYNAMIC] = of(keyed_rows)
    made |= {
        name: of(placement, sent=True) for name, placement in ((STATIC_SENT, static_rows), (DYNAMIC_SENT, keyed_rows))
    }
    for each in made.values():
        for feature in range(features) if each.arena.keyed else ():
            asked = np.ones((rows, 3), np.int64)
            asked[by_arrival[:, feature], 0] = keys_of(np.arange(rows))
            asked[:, 1] = feature
            each.arena.keyed.find(asked)
        each.arena.weights[:] = 0.0
    return made


def batches_of(batch: int, ids: np.ndarray, orders: Mapping[str, np.ndarray]) -> dict[str, list[Batch]]:
    """The same batches for each contender."""
    size, features = batch, ids.shape[1]
    none, labels, keys = np.empty((size, 0), np.float32), np.zeros(size, np.float32), keys_of(ids)
    starts, nothing = range(0, len(ids) - size + 1, size), np.empty((size, 0), np.int32)
    by_key = [Batch(nothing, none, labels, keys[at : at + size]) for at in starts]
    found = {DYNAMIC: by_key, DYNAMIC_SENT: by_key}
    for name, order in orders.items():
        places = (RESERVED + order[ids, np.arange(features)]).astype(np.int32)
        found[name] = [Batch(places[at : at + size], none, labels) for at in starts]
    return found


def of_size(
    contenders: dict[str, Contender], batch: int, ids: np.ndarray, orders: Mapping[str, np.ndarray], turns: int
) -> list[TableCost]:
    """The costs at one batch size; the first turn is not counted."""
    batches, generator = batches_of(batch, ids, orders), np.random.default_rng(2)
    width = contenders[STATIC].arena.options.layout.width
    gradients = generator.standard_normal((batch, ids.shape[1], width), np.float32)
    each, seconds = max(1, EXAMPLES_A_TURN // batch), {name: np.empty((turns + 1, 2)) for name in contenders}
    for turn in range(turns + 1):
        for name in np.roll(list(contenders), turn):
            some = [batches[name][(turn * each + k) % len(batches[name])] for k in range(each)]
            seconds[name][turn] = contenders[name].turn(some, gradients)
    first, *others = (contenders[name].values(batches[name][0]) for name in contenders)
    if not all(np.array_equal(first, other) for other in others):
        raise AssertionError("the contenders have computed different rows")
    taken = {name: found[1:] / (each * batch * ids.shape[1]) for name, found in seconds.items()}
    return [cost(batch, name, found, taken[BESIDE.get(name, STATIC)]) for name, found in taken.items()]


def cost(batch: int, name: str, seconds: np.ndarray, static: np.ndarray) -> TableCost:
    """From the seconds an id of each turn, (turns, 2): pull and push."""
    pull, push = 1e9 * np.median(seconds, axis=0)
    return TableCost(
        batch=batch, contender=name, pull_ns=float(pull), push_ns=float(push),
        pull_ratio=float(np.median(static[:, 0] / seconds[:, 0])),
        ratio=float(np.median(static.sum(axis=1) / seconds.sum(axis=1))),
    )  # fmt: skip


def table(costs: Sequence[TableCost], options: TablesOptions) -> str:
    """One line per batch size and contender."""
    first = (
        f"{options.features} features of {options.rows:,} rows x {options.dim} floats, skew {options.skew:g}; medians "
        f"of {options.turns} turns, one thread; CPU nanoseconds an id, and how fast relative to static by frequency, "
        "by messages relative to static by messages"
    )
    lines = [first, f"{'batch':>6}  {'tables':24}{'pull ns':>9}{'push ns':>9}{'pull':>8}{'pull, push':>12}"]
    for c in costs:
        lines.append(
            f"{c.batch:>6}  {c.contender:24}{c.pull_ns:>9.1f}{c.push_ns:>9.1f}{c.pull_ratio:>8.2f}{c.ratio:>12.2f}"
        )
    return "\n".join(lines)


@njit(cache=True, nogil=True)
def mixed(values: np.ndarray) -> np.ndarray:
    """``mix`` of each of ``values`` uint64 (n,)."""
    out = np.empty_like(values)
    for i in range(values.size):
        out[i] = mix(values[i])
    return out
