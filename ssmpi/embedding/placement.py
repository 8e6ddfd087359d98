"""Plans which embedding PS holds which rows: pure arithmetic over table sizes, the same on every rank.

A keyed table has a stripe on each PS, for the keys that hash to it (``key_kernels.owner_of``): its ids are row * PSs +
PS. The others follow by longest processing time first (Graham 1969) over the larger of a part's shares of memory and of
lookups. A table above a quarter of the ideal share is split by rows, in stripes: ids are ordered by frequency, and
stripes spread the frequent ones evenly.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ssmpi.embedding.dynamic_options import DynamicOptions, KeyOptions
from ssmpi.runtime.errors import TopologyError
from ssmpi.runtime.settings import require

LARGEST_ARENA = 2**31 - 1
DEFAULTS = DynamicOptions()
LARGEST_PIECE = (
    0.25  # of a PS's ideal share: with pieces as large as the share, Kaggle on 16 PSs is 1.36 : 1 out of balance
)


@dataclass(frozen=True)
class Part:
    """Rows ``first, first + stride, ...`` of one table, held by PS ``owner`` from arena row ``base`` on."""

    table: int
    first: int
    stride: int
    rows: int
    owner: int
    base: int


@dataclass(frozen=True)
class Placement:
    """All parts of all tables. ``cardinalities`` are the rows of each table, of those in ``dynamic``, the keyed ones,
    with room for the most keys; ``lengths`` how many of them an example looks up on average; ``names`` those of their
    features.
    """

    cardinalities: tuple[int, ...]
    servers: int
    parts: tuple[Part, ...]
    lengths: tuple[float, ...]
    names: tuple[str, ...]
    dynamic: Mapping[int, KeyOptions] = field(default_factory=dict, hash=False)

    @property
    def keyed(self) -> tuple[int, ...]:
        """The numbers of the keyed tables."""
        return tuple(self.dynamic)

    def parts_of(self, server: int) -> list[Part]:
        """The parts one PS holds, in arena order."""
        return self._by_server[server]

    @cached_property
    def _by_server(self) -> list[list[Part]]:
        found: list[list[Part]] = [[] for _ in range(self.servers)]
        for part in sorted(self.parts, key=lambda p: p.base):
            found[part.owner].append(part)
        return found

    def keyed_parts_of(self, server: int) -> list[Part]:
        """Those of keyed tables, one of each."""
        return [part for part in self.parts_of(server) if part.table in self.keyed]

    def rows_of(self, server: int) -> int:
        """Rows in one PS's arena."""
        return sum(p.rows for p in self.parts_of(server))

    def lookups_of(self, server: int) -> float:
        """Expected lookups per example at one PS."""
        return sum(self.lengths[p.table] / p.stride for p in self.parts_of(server))

    @cached_property
    def most_rows(self) -> int:
        """Rows of the PS that holds most."""
        return max(map(self.rows_of, range(self.servers)))

    @cached_property
    def limits(self) -> np.ndarray:
        """Rows of each table, int64 (tables,)."""
        return np.array(self.cardinalities, np.int64)

    @cached_property
    def strides(self) -> np.ndarray:
        """Into how many stripes each table is cut, int64 (tables,)."""
        strides = np.ones(len(self.cardinalities), np.int64)
        for part in self.parts:
            strides[part.table] = part.stride
        return strides

    @cached_property
    def owners(self) -> np.ndarray:
        """PS of each stripe of each table, int32 (tables, most stripes)."""
        return self._by_stripe([p.owner for p in self.parts], np.int32)

    @cached_property
    def bases(self) -> np.ndarray:
        """First arena row of each stripe of each table, int64 (tables, most stripes)."""
        return self._by_stripe([p.base for p in self.parts], np.int64)

    def _by_stripe(self, values: list[int], dtype: type) -> np.ndarray:
        table: np.ndarray = np.zeros((len(self.cardinalities), int(self.strides.max())), dtype)
        for part, value in zip(self.parts, values, strict=True):
            table[part.table, part.first] = value
        return table


def keyed_tables(sizes: Sequence[int], dynamic: DynamicOptions, names: Sequence[str]) -> Mapping[int, KeyOptions]:
    """How the keys of each keyed table get rows: those of size 0, with these ``names``. SettingsError if ``dynamic``
    names other features, or says anything where no table is keyed.
    """
    keyed = [table for table, rows in enumerate(sizes) if not rows]
    require(
        bool(keyed) or dynamic == DEFAULTS,
        "[embedding.dynamic] is for features with 64-bit keys, and this data has none: leave it out",
    )
    dynamic.check([names[table] for table in keyed])
    return {table: dynamic.of(names[table]) for table in keyed}


def _owners(
    cardinalities: Sequence[int], lengths: Sequence[float], servers: int, keyed: Collection[int]
) -> dict[int, list[int]]:
    """The PS of each table's stripes: the largest first, each to where memory and lookups are fewest. A keyed table has
    one on every PS.
    """
    total = sum(cardinalities)
    ideal_rows, ideal_lookups = total / servers, (sum(lengths) or 1.0) / servers
    pieces = []
    for table, rows in enumerate(cardinalities):
        if table in keyed:
            continue
        share = max(rows / ideal_rows, lengths[table] / ideal_lookups)
        stride = min(rows, servers, math.ceil(share / LARGEST_PIECE - 1e-9))
        pieces += [(table, first, stride, len(range(first, rows, stride))) for first in range(stride)]

    memory, lookups = [0.0] * servers, [0.0] * servers  # those of keyed tables are equal
    owners = {table: list(range(servers)) for table in keyed}  # of each table's stripes

    def cost(piece: tuple[int, int, int, int]) -> float:
        return max(piece[3] / ideal_rows, lengths[piece[0]] / piece[2] / ideal_lookups)

    for table, _first, stride, rows in sorted(pieces, key=lambda p: (-cost(p), p)):
        more_memory, more_lookups = rows / ideal_rows, lengths[table] / stride / ideal_lookups
        owner = min(
            range(servers),
            key=lambda s: (max(memory[s] + more_memory, lookups[s] + more_lookups), memory[s] + lookups[s], s),
        )
        owners.setdefault(table, []).append(owner)
        memory[owner] += more_memory
        lookups[owner] += more_lookups
    return owners


def place(
    sizes: Sequence[int],
    servers: int,
    dynamic: DynamicOptions = DEFAULTS,
    names: Sequence[str] = (),
    lengths: Sequence[float] = (),
) -> Placement:
    """Spread tables of these sizes over ``servers`` embedding PSs; TopologyError if one would hold more rows than it
    can number. Tables of size 0 are keyed, as ``dynamic`` says of features with these ``names``, C1, C2 ... if not
    given; SettingsError if it does not fit them. ``lengths``: lookups of each table per example, one if not
    given.
    """
    names = names or [f"C{table + 1}" for table in range(len(sizes))]
    keyed = keyed_tables(sizes, dynamic, names)
    cardinalities = [rows or servers * keyed[table].rows(servers) for table, rows in enumerate(sizes)]
    lengths = tuple(lengths or [1.0] * len(sizes))
    total, owners = sum(cardinalities), _owners(cardinalities, lengths, servers, keyed)
    arena = [0] * servers
    parts = []
    for table, stripes in sorted(owners.items()):
        stripes = stripes[:1] if len(set(stripes)) == 1 else stripes  # stripes that met again are a whole table
        for first, owner in enumerate(stripes):
            rows = len(range(first, cardinalities[table], len(stripes)))
            parts.append(Part(table, first, len(stripes), rows, owner, arena[owner]))
            arena[owner] += rows
    if max(arena) > LARGEST_ARENA:
        raise TopologyError(
            f"one embedding PS would hold {max(arena):,} rows, more than the {LARGEST_ARENA:,} it can address: set "
            f"topology.embedding_ps = {math.ceil(total / LARGEST_ARENA * 1.1)} or more"
        )
    return Placement(tuple(cardinalities), servers, tuple(parts), lengths, tuple(names), keyed)
