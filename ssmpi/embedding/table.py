"""The rows one embedding PS holds: all its parts in one arena, with row-wise optimizer state beside them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import h5py
import numpy as np

from ssmpi.embedding import kernels, key_kernels, key_moves, keyed_files, precision, row_optimizers, table_decay
from ssmpi.embedding.dynamic_options import DynamicOptions
from ssmpi.embedding.keyed_files import ROWS_AT_A_TIME, Continued, KeyedLoad, Loading
from ssmpi.embedding.keyed_memory import ArenaAllocator, KeyMemory
from ssmpi.embedding.keyed_table import Beginning, KeyedTable, KeyedTables
from ssmpi.embedding.placement import Part, Placement
from ssmpi.embedding.row_optimizers import ROW_OPTIMIZERS, RowOptimizer
from ssmpi.embedding.stored_pages import StoredPages
from ssmpi.embedding.wire import PulledBags
from ssmpi.runtime import optimizer_options
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.files import hdf5
from ssmpi.runtime.mpi.shared_memory import Memory, PrivateMemory
from ssmpi.runtime.row_layout import RowLayout
from ssmpi.runtime.settings import DERIVED, FLOAT32, NO_TRANSPORT, positive, require, within

ROWS = "rows"  # the name of an arena in the memory of its rank
KEYS = "keys"  # that of its keys

Observe = Callable[[np.ndarray, np.ndarray], None]  # rows int32 (n,) and the number of accesses of each


@dataclass(frozen=True)
class EmbeddingOptions:
    """The ``[embedding]`` section: the rows of the tables, their optimizer, and the access of trainers to them."""

    REMOVED: ClassVar = {
        "transport": ("auto", NO_TRANSPORT),
        "table": (
            ("static", "dynamic"),
            "leave it out: features with 64-bit keys have dynamic tables, others static ones",
        ),
    }
    dim: int = 16
    """Floats of a row."""
    precision: str = "fp32"
    """How rows are kept: ``fp32``, or in 16 bits as ``bf16`` or ``fp16``. They are computed in float32, and rounded
    stochastically; the state of their optimizer is always float32.
    """
    storage: str = ""
    """A folder on a local disk of the hosts that hold the tables, if these exceed memory: rows lie in a file there, and
    the most frequent ones and those in use in the memory that is left. Empty: in memory.
    """
    optimizer: str = "rowwise_adagrad"
    """``sgd``, ``rowwise_adagrad``, ``partial_rowwise_adam``, ``adam`` or ``adamw``."""
    rate: float = 0.15
    """Learning rate; the schedule multiplies it. The default suits Adagrad."""
    initial_bound: float = 1.0
    """Bound on the initial values of rows, which are uniform within 1 / sqrt(rows of the table), or this if it is
    less.
    """
    epsilon: float = 1e-8
    """Added to the root that divides a step, like torch's ``eps``."""
    initial_state: float = 3e-4
    """Initial value of Adagrad's sums of squares."""
    beta1: float = 0.9
    """Decay factor of Adam's mean of gradients."""
    beta2: float = 0.999
    """Decay factor of Adam's mean of squares."""
    weight_decay: float = 0.0
    """Weight decay of the rows that a batch looks up. This times the weight is added to the gradient; with ``adamw``
    the weight shrinks by the rate times this.
    """
    table_decay: float = 0.0
    """Weight decay of all rows of the tables in every step, as FuxiCTR's ``embedding_regularizer``. It works as
    ``weight_decay``, which is added to it for the rows that a batch looks up.
    """
    clip_value: float = 0.0
    """Bound on each entry of a row's gradient; 0: none."""
    prefetch: bool = True
    """A thread requests the rows of the next batch before it trains on this one. That hides the round trip, and rows
    are one batch of the thread old. Without it, one thread computes exactly what a single process would.
    """
    pushes_in_flight: int = 4
    """Batches of a thread whose row gradients may be in flight before it waits."""
    pooling: str = "auto"
    """Who pools lists of ids if rows travel by message: ``server``, before it sends them; ``trainer``; or ``auto``,
    whichever sends fewer bytes.
    """
    dynamic: DynamicOptions = field(default_factory=DynamicOptions)
    shared_memory: bool = field(default=True, metadata=DERIVED)  # of ``[run]``

    def __post_init__(self) -> None:
        within("dim", self.dim, 1, 65_536)
        kinds = ", ".join(map(repr, precision.DTYPES))
        require(self.precision in precision.DTYPES, f"precision is one of {kinds}, got {self.precision!r}")
        require(
            not self.storage or Path(self.storage).is_absolute(), f"storage is an absolute path, got {self.storage}"
        )
        optimizer_options.check(self, ROW_OPTIMIZERS)
        positive("initial_bound", self.initial_bound, 1.0)
        within("clip_value", self.clip_value, 0.0, FLOAT32)
        within("table_decay", self.table_decay, 0.0, FLOAT32)
        if self.table_decay:
            require(
                self.optimizer != "partial_rowwise_adam",
                'table_decay does not work with optimizer = "partial_rowwise_adam": set "adam", or use weight_decay',
            )
            require(
                self.optimizer not in ("sgd", "adamw") or self.rate * self.table_decay < 1,
                f"rate * table_decay = {self.rate * self.table_decay:g}: a step would shrink weights to 0 or beyond; it"
                " must be less than 1",
            )
        require(
            self.pooling in ("auto", "server", "trainer"),
            f"pooling is 'auto', 'server' or 'trainer', got {self.pooling!r}",
        )
        within("pushes_in_flight", self.pushes_in_flight, 1, 1000)


@dataclass(frozen=True)
class RowOptions:
    """The rows' ``layout``, from the network, and the ``[embedding]`` section (``settings``), which says how they are
    stored and updated.
    """

    settings: EmbeddingOptions
    layout: RowLayout

    @cached_property
    def optimizer(self) -> RowOptimizer:
        """What updates them."""
        return ROW_OPTIMIZERS[self.settings.optimizer](self.settings, self.layout)

    @property
    def clock_bytes(self) -> int:
        """Memory of one clock, which each row and the table as a whole has if tables decay."""
        return 8 * table_decay.CLOCK * (self.settings.table_decay > 0)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """In which rows are kept."""
        return np.dtype(precision.DTYPES[self.settings.precision])

    @property
    def pulled_dtype(self) -> np.dtype[Any]:
        """In which rows travel to a trainer: as they are kept, or computed for it if tables decay."""
        return np.dtype(np.float32) if self.clock_bytes else self.dtype

    @property
    def weight_bytes(self) -> int:
        """Memory of one row without its optimizer state."""
        return self.dtype.itemsize * self.layout.width

    @property
    def row_bytes(self) -> int:
        """Memory of one row with its optimizer state."""
        return self.weight_bytes + 4 * self.optimizer.floats + self.clock_bytes

    def bytes_for(self, count: int) -> int:
        """Memory of an array of ``count`` rows."""
        return self.bytes_of(slice(0, count), count)[-1].stop

    def bytes_of(self, rows: slice, count: int) -> list[slice]:
        """Where clocks, if there are any, weights and state of some rows lie in the memory of an array of ``count``
        rows. The clock of all lies behind theirs.
        """
        sizes = self.clock_bytes, self.weight_bytes, 4 * self.optimizer.floats
        weights = -(-self.weight_bytes * count // 4) * 4  # the state begins at a whole word
        edges = 0, self.clock_bytes * (count + 1), self.clock_bytes * (count + 1) + weights
        found = [slice(e + s * rows.start, e + s * rows.stop) for s, e in zip(sizes, edges, strict=True)]
        return found if self.clock_bytes else found[1:]


class RowArray:
    """``weights`` (rows, width) of ``options.dtype`` and their optimizer's ``state`` float32 (rows, floats of one), one
    after the other in ``memory``, uint8 of ``options.bytes_for(count)``; before them, if tables decay, ``clocks``
    float64 (rows + 1, ``table_decay.CLOCK``), else empty. Rows are not padded to whole cache lines: rows of 17 floats
    are pulled and updated as fast as padded ones of 20, 24 or 32, and faster if the table fits in cache.
    """

    def __init__(self, options: RowOptions, memory: np.ndarray, count: int) -> None:
        layout, numbers = options.layout, options.optimizer.numbers
        weights, state = options.bytes_of(slice(0, count), count)[-2:]
        self.options = options
        self.weights = memory[weights].view(options.dtype).reshape(count, layout.width)
        self.state = memory[state].view(np.float32).reshape(count, options.optimizer.floats)
        self.clocks = memory[: weights.start].view(np.float64).reshape(-1, table_decay.CLOCK)
        self._aging = (numbers, self.weights, self.state, self.clocks) if len(self.clocks) else None
        self._observe: Observe | None = None
        stored = (self.weights, self.state) if options.settings.storage else ()
        self._pages = [StoredPages(values) for values in stored if values.size]

    def start_reading(self, rows: np.ndarray) -> None:
        """Rows int32 (n,) are needed soon: start to read those that lie on disk and not in memory."""
        for pages in self._pages:
            pages.start_reading(rows)

    def read(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Write ``rows`` int32 (n,) as they are now to ``out`` (>= n, width) of float32, or of ``pulled_dtype``."""
        if self._aging:
            table_decay.read(*self._aging, rows, out)
        elif out.dtype != np.float32:
            kernels.copy(self.weights, rows, out)
        else:
            kernels.gather(self.weights, rows, out)

    def pool(self, bags: PulledBags, out: np.ndarray) -> None:
        """Write the sums of ``bags`` of rows to ``out`` float32 (bags, width)."""
        weights, places = self.weights, bags.rows
        if self._aging:
            weights, places = np.empty((len(places), weights.shape[1]), "f4"), np.arange(len(places), dtype="i4")
            self.read(bags.rows, weights)
        kernels.pool(weights, places, bags.ends, bags.weights, out)

    def copy(self, rows: np.ndarray, weights: np.ndarray, state: np.ndarray) -> None:
        """Write ``weights``, as they are kept, and ``state`` of ``rows`` int32 (n,) as they are now."""
        if self._aging:
            values, now = (self.weights[rows], self.state[rows]), self.clocks[-1].copy()
            table_decay.settle(self._aging[0], *values, self.clocks[rows], now, int(now[0]))
            weights[:], state[:] = values
        else:
            state[:] = self.state[rows]
            kernels.copy(self.weights, rows, weights)

    def update(
        self, rows: np.ndarray, gradients: np.ndarray, factor: float, times: np.ndarray | None = None, number: int = 0,
        clock: np.ndarray = table_decay.OWN,
    ) -> None:  # fmt: skip
        """Apply gradients float32 (n, dim) of unique rows int32 (n,) at ``factor`` times the learning rate; ``times``
        int32 (n,) is the number of accesses of each, None if they are not counted. Rows of 16 bits are rounded by the
        ``number`` of the push; ``clock`` as ``before`` in ``table_decay.begin_step``. The gradients are used up.
        """
        numbers = self.options.optimizer.numbers
        if self._aging:
            table_decay.begin_step(*self._aging, rows, factor, number, clock)
        row_optimizers.update(numbers, self.weights, self.state, rows, gradients, factor, number)
        if times is not None:
            self.observe(rows, times)

    def observe(self, rows: np.ndarray, times: np.ndarray) -> None:
        """Report updated rows, with the number of accesses to each."""
        if self._observe:
            self._observe(rows, times)

    def set_observer(self, observe: Observe) -> None:
        """Call ``observe`` with the rows of each update from now on, after applying it."""
        self._observe = observe


class Arena(RowArray):
    """The rows of one PS's parts, and how they are made, saved and loaded.

    Initial vectors are U(-b, b), b = 1/sqrt(n) with n the table's rows (facebookresearch/dlrm), at most
    ``embedding.initial_bound``, from a counter-based generator: neither placement nor the number of PSs changes a
    value. First-order weights start at 0. Rows already in ``memory`` are not initialized. In a keyed table n is the
    most ``keys``, rows begin when a key gets them, and ``keys`` is the memory of the maps; ``keyed`` are these tables
    by number.
    """

    def __init__(
        self,
        options: RowOptions,
        placement: Placement,
        server: int,
        seed: int,
        memory: Memory | None = None,
        keys: Memory | None = None,
    ) -> None:
        count, layout = placement.rows_of(server), KeyMemory(placement, server)
        memory = memory or PrivateMemory()
        there = [slice(p.base, p.base + layout.first_of(p)) for p in placement.parts_of(server)]
        first = [each for rows in there for each in options.bytes_of(rows, count)] if placement.keyed else None
        if first and options.clock_bytes:
            first.append(options.bytes_of(slice(count, count + 1), count)[0])
        super().__init__(options, memory.allocate(options.bytes_for(count), first), count)
        self.move_lock = threading.Lock()  # held while rows move, or must not
        self.moved: Callable[[np.ndarray, np.ndarray], None] = lambda before, after: None  # told which rows did
        self.placement, self.server, self._seed = placement, server, seed
        self.parts, self.cardinalities = placement.parts_of(server), placement.cardinalities
        if not memory.kept:
            self._fill()
        tables = self._keyed_tables(layout, memory, keys or PrivateMemory()) if placement.keyed else {}
        self.keyed = KeyedTables(tables, placement, server)

    def _fill(self) -> None:
        """Set all rows to their initial values; of a keyed table the reserved ones."""
        for part in self.parts:
            rows = slice(part.base, part.base + self._fixed(part))
            self.state[rows] = self.options.optimizer.initial
            vectors = self.weights[rows]
            kernels.initial_rows(vectors, self._seed, part.table, part.first, part.stride, self._bound(part))
            vectors[:, self.options.layout.vector :] = 0  # in all types
            self.clocks[rows] = table_decay.BEGIN
        self.clocks[-1:] = table_decay.BEGIN

    def begin_clocks(self) -> None:
        """Before the first lookup: rows that were loaded begin to decay, and what a kill left of ``settle`` is done."""
        for rows, free in self._parts_in_use() if self._aging else ():
            clocks, now = self.clocks[rows], self.clocks[-1]
            clocks[free] = 0.0
            waiting = (clocks[:, 0] == 0.0) | (clocks[:, 0] > now[0])
            waiting[free] = False
            clocks[waiting] = now

    def settle(self, samples: int) -> None:
        """While nobody looks up rows, after so many ``samples``: let all of them catch up with the decay of their
        tables, and clocks begin anew. Those of rows without a key end. A kill at any moment does no harm.
        """
        if not self._aging:
            return
        for rows, free in self._parts_in_use():
            self.clocks[rows][free] = 0.0
            values = self.weights[rows], self.state[rows], self.clocks[rows]
            table_decay.settle(self.options.optimizer.numbers, *values, self.clocks[-1], max(samples, 0))
        self.clocks[-1] = table_decay.BEGIN  # from here on no row is behind
        for rows, free in self._parts_in_use():
            self.clocks[rows] = table_decay.BEGIN
            self.clocks[rows][free] = 0.0

    def _parts_in_use(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The rows of each part, up to the last that ever had a key, and which of them have none, int64."""
        for part in self.parts:
            stop, free = self._fixed(part), np.empty(0, np.int64)
            if table := self.keyed.get(part.table):
                stop = max(stop, int(table.head[key_kernels.END]))
                free = key_kernels.RESERVED + np.flatnonzero(table.keys[key_kernels.RESERVED : stop] == 0)
            yield slice(part.base, part.base + stop), free

    def _fixed(self, part: Part) -> int:
        """How many rows a part has from the beginning."""
        return key_kernels.RESERVED if part.table in self.placement.keyed else part.rows

    @property
    def used(self) -> int:
        """Rows of ids, and of keys that have one."""
        ids = (part.rows if part.table not in self.keyed else len(keyed_files.reserved(part)) for part in self.parts)
        return sum(ids) + sum(len(table.in_use()) for table in self.keyed.values())

    def _bound(self, part: Part) -> float:
        """Of the initial values of a part."""
        dynamic = self.placement.dynamic.get(part.table)
        bound = 1.0 / math.sqrt(dynamic.keys if dynamic else self.cardinalities[part.table])
        return min(bound, self.options.settings.initial_bound)

    def _keyed_tables(self, layout: KeyMemory, memory: Memory, keys: Memory) -> dict[int, KeyedTable]:
        """The keyed tables by number, whose rows are in ``memory`` and all else in ``keys``."""
        beside, found, count = keys.allocate(layout.size, layout.beginning()), {}, len(self.weights)
        for part in self.placement.keyed_parts_of(self.server):
            rows, place = slice(part.base, part.base + part.rows), layout.places[part.table]
            initial = self._bound(part), self.options.optimizer.initial
            begin = Beginning(self._seed, part.table, self.options.layout.vector, *initial)
            allocator = ArenaAllocator(
                memory,
                partial(self.options.bytes_of, count=count),
                part.base,
                keys,
                place.start,
                self._hot(part, memory.hot),
            )
            options = self.placement.dynamic[part.table].share(part.first, part.stride)
            values = self.weights[rows], self.state[rows]
            found[part.table] = KeyedTable(options, beside[place], values, begin, allocator=allocator, kept=keys.kept)
        return found

    def _hot(self, part: Part, hot: Sequence[slice]) -> int:
        """How many of the first rows of a part lie in these bytes of the arena."""
        weights = self.options.bytes_of(slice(part.base, part.base + part.rows), len(self.weights))[-2]
        ends = [each.stop for each in hot if each.start < weights.stop and weights.start < each.stop]
        return max(0, min(max(ends, default=0), weights.stop) - weights.start) // self.options.weight_bytes

    def sweep(self, samples: int) -> np.ndarray:
        """Training pauses after so many ``samples`` of all trainers: keyed tables free rows, of those on disk the ones
        used most move to memory, and all catch up with the decay of their tables. Counts as ``KeyedTables.sweep``.
        """
        counts = self.keyed.sweep(samples)
        if self.move_lock.acquire(blocking=False):
            try:
                self._move()
            finally:
                self.move_lock.release()
        self.settle(samples)
        return counts

    def _move(self) -> None:
        """Of keyed tables on disk: rows that are used most move to memory, as many as the time allows."""
        if not self.options.settings.storage:
            return
        deadline = time.monotonic() + key_moves.SECONDS
        for part in self.placement.keyed_parts_of(self.server):
            rows = slice(part.base, part.base + part.rows)
            values = self.weights[rows], self.state[rows], self.clocks[rows]
            read = partial(self._read_from, part.base)
            moves = part.base + self.keyed[part.table].move_used(values, read, deadline)
            if len(moves):
                self.moved(*moves.T)

    def _read_from(self, base: int, rows: np.ndarray) -> None:
        """As ``start_reading``, of rows int64 (n,) that are counted from a part's first."""
        self.start_reading((base + rows).astype(np.int32))

    def check(self, rows: np.ndarray) -> None:
        """Raise DataError if a row number is not in this arena."""
        bad = kernels.out_of_range(rows, len(self.weights))
        if bad >= 0:
            raise DataError(
                f"asked for row {rows[bad]} of {len(self.weights)}: trainer and PS differ in their placement"
            )

    def datasets(self, room: keyed_files.Room | None = None) -> Iterator[tuple[str, np.ndarray, dict[str, Any]]]:
        """What to save, copied into ``room``, without it views of the live rows: for every part
        ``table-TT-first-stride/weights`` (rows, width), of the type that they have here (``precision.DTYPES``), and the
        optimizer's ``state``, (rows,) if it is one float a row, else (rows, floats). Of keyed tables all are copies.
        """
        for part in self.parts:
            rows = slice(part.base, part.base + part.rows)
            place = {"table": part.table, "first": part.first, "stride": part.stride}
            if part.table in self.keyed:
                vector = {"vector": self.options.layout.vector}
                keyed, own = self.keyed[part.table], self.values_of(part)
                yield from keyed_files.datasets(keyed, part, own, place | vector, room or np.empty)
                continue
            for name, values in (("weights", self.weights), ("state", self._saved_state)):
                if values.size:
                    whole = {
                        **place, "cardinality": self.cardinalities[part.table], "vector": self.options.layout.vector
                    }  # fmt: skip
                    saved = values[rows]
                    if room is not None:
                        saved = room(saved.shape, saved.dtype)
                        np.copyto(saved, values[rows])
                    yield f"table-{part.table:02}-{part.first}-{part.stride}/{name}", saved, whole

    @property
    def _saved_state(self) -> np.ndarray:
        """The state as files have it."""
        return self.state.reshape(-1) if self.state.shape[1] == 1 else self.state

    def values_of(self, part: Part) -> tuple[np.ndarray, np.ndarray]:
        """Weights and state of a part, the latter as files have it."""
        rows = slice(part.base, part.base + part.rows)
        return self.weights[rows], self._saved_state[rows]

    def loading(self, continued: Continued | None = None) -> Loading:
        """The rows to load from saved files, none of which is there yet: of a run that is ``continued`` those of ids
        that it has.
        """
        sizes = continued.sizes if continued else self.cardinalities
        ends = [(p, min(sizes[p.table], self.cardinalities[p.table])) for p in self.parts if p.table not in self.keyed]
        rows = sum(len(range(part.first, end, part.stride)) for part, end in ends)
        keyed = {part.table: part for part in self.parts if part.table in self.keyed}
        loads = {t: KeyedLoad(self.keyed[t], part, self.values_of(part), continued) for t, part in keyed.items()}
        return Loading(rows, loads, continued)

    def load(self, path: Path, loading: Loading) -> None:
        """Load the rows of this arena that a saved file holds, whatever placement saved it."""
        with hdf5.saved_model(path) as saved:
            for group in saved.values():
                for part in self.parts:
                    if part.table != group["weights"].attrs["table"]:
                        continue
                    if ("keys" in group) != (part.table in self.keyed):
                        raise DataError(f"{path}: table {part.table} has keys there and ids here, or the other way")
                    if part.table in self.keyed:
                        check_rows(path, group["weights"], self.options.layout)
                        loading.keyed[part.table].take(path, group)
                    else:
                        loading.rows -= self._take(path, group, part, loading.continued)

    def _take(self, path: Path, group: h5py.Group, part: Part, continued: Continued | None) -> int:
        """Copy the rows that a saved part and one of this arena have in common: the intersection of two stripes. Of a
        run that is ``continued`` the table may have been narrower: its ids begin with those.
        """
        first, stride, cardinality = (int(group["weights"].attrs[name]) for name in ("first", "stride", "cardinality"))
        here = self.cardinalities[part.table]
        if cardinality != here and not (continued and cardinality < here):
            raise DataError(
                f"{path}: table {part.table} has {cardinality} rows, this model {here}: the "
                "weights belong to other data"
            )
        check_rows(path, group["weights"], self.options.layout)
        taken, state = 0, not (continued and continued.fresh)
        for start in range(0, part.rows, ROWS_AT_A_TIME):
            ours = part.first + part.stride * np.arange(start, min(start + ROWS_AT_A_TIME, part.rows), dtype=np.int64)
            common = np.flatnonzero((ours % stride == first) & (ours < cardinality))
            if len(common):
                source, target = (ours[common] - first) // stride, part.base + start + common
                low, high = int(source[0]), int(source[-1]) + 1
                self.weights[target] = precision.converted(group["weights"][low:high][source - low], self.weights.dtype)
                if state and self.state.size and "state" in group:
                    self._saved_state[target] = group["state"][low:high][source - low]
                taken += len(common)
        return taken


def check_rows(path: Path, saved: h5py.Dataset, layout: RowLayout) -> None:
    """DataError unless the saved rows have this layout; older files do not record one and hold vectors only."""
    width = saved.shape[1]
    vector = int(saved.attrs.get("vector", width))
    if (vector, width) != (layout.vector, layout.width):
        what = f"{width} floats" if width == vector else f"{vector} floats and a first-order weight"
        raise DataError(
            f"{path}: rows of {what}, but {layout.describe()} in the settings: set model.name and embedding.dim back,"
            " and the end of model.bottom with it"
        )


class Saver(Protocol):
    """Writes an arena into a file, perhaps while it changes."""

    def begin(self, arena: Arena, path: Path, limit_seconds: float, *, background: bool) -> None:
        """Start; the rows may change again when this returns, and the limit is for that."""

    def outcome(self) -> dict[str, Any] | None:
        """``file``, ``bytes`` and ``checksum``, or ``error``; None while it is being written."""
