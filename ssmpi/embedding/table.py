"""The rows one embedding PS holds: all its parts in one arena, with row-wise optimizer state beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from ssmpi.comm.shared_memory import Memory, PrivateMemory
from ssmpi.core import optimizer_options
from ssmpi.core.errors import DataError
from ssmpi.core.row_layout import RowLayout
from ssmpi.core.settings import require, within
from ssmpi.embedding import kernels, row_optimizers
from ssmpi.embedding.placement import Part, Placement
from ssmpi.embedding.row_optimizers import ROW_OPTIMIZERS, RowOptimizer

ROWS_AT_A_TIME = 1 << 18  # when loading
ROWS = "rows"  # the name of an arena in the memory of its rank

Observe = Callable[[np.ndarray, np.ndarray], None]  # rows int32 (n,) and the number of accesses of each


@dataclass(frozen=True)
class EmbeddingOptions:
    """The ``[embedding]`` section.

    ``optimizer`` is one of ``ROW_OPTIMIZERS``; ``rate`` its learning rate (the schedule multiplies it). With
    ``prefetch`` a thread asks for the next batch's rows before it trains on this one: the round trip is hidden, and
    rows are one of its own batches old. Without, one thread computes exactly what a single process would.
    ``transport`` is how a trainer reaches a PS: ``shared`` maps its memory and works on the rows in place, ``messages``
    does not, ``auto`` is ``shared`` where both are on one host. Results are the same. ``pooling`` is who pools
    lists of ids whose rows are reached by messages: ``server`` before it sends them, ``trainer``, or ``auto``, by what
    is less to send.
    """

    dim: int = 16
    optimizer: str = "rowwise_adagrad"
    rate: float = 0.15
    epsilon: float = 1e-8
    initial_state: float = 3e-4
    prefetch: bool = True
    pushes_in_flight: int = 4
    pooling: str = "auto"
    transport: str = "auto"

    def __post_init__(self) -> None:
        within("dim", self.dim, 1, 65_536)
        optimizer_options.check(self, ROW_OPTIMIZERS)
        require(
            self.transport in ("auto", "shared", "messages"),
            f"transport is 'auto', 'shared' or 'messages', got {self.transport!r}",
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
    def row_bytes(self) -> int:
        """Memory of one row with its optimizer state."""
        return 4 * (self.layout.width + self.optimizer.floats)


class RowArray:
    """``weights`` float32 (rows, width) and their optimizer's ``state`` float32 (rows, floats of one), one after the
    other in ``memory``, uint8 of ``count * options.row_bytes``. Rows are not padded to whole cache lines: rows of 17
    floats are pulled and updated as fast as padded ones of 20, 24 or 32, and faster if the table fits in cache.
    """

    def __init__(self, options: RowOptions, memory: np.ndarray, count: int) -> None:
        layout = options.layout
        edge = 4 * count * layout.width
        self.options = options
        self.weights = memory[:edge].view(np.float32).reshape(count, layout.width)
        self.state = memory[edge:].view(np.float32).reshape(count, options.optimizer.floats)
        self._observe: Observe | None = None

    def update(self, rows: np.ndarray, gradients: np.ndarray, factor: float, times: np.ndarray | None = None) -> None:
        """Apply gradients float32 (n, dim) of unique rows int32 (n,) at ``factor`` times the learning rate; ``times``
        int32 (n,) is the number of accesses of each, None if they are not counted.
        """
        row_optimizers.update(self.options.optimizer.numbers, self.weights, self.state, rows, gradients, factor)
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

    Initial vectors are U(-1/sqrt(n), 1/sqrt(n)) with n the table's rows (facebookresearch/dlrm), from a counter-based
    generator: neither placement nor the number of PSs changes a value. First-order weights start at 0. Rows already in
    ``memory`` are not initialized.
    """

    def __init__(
        self,
        options: RowOptions,
        placement: Placement,
        server: int,
        seed: int,
        memory: Memory | None = None,
    ) -> None:
        count = placement.rows_of(server)
        memory = memory or PrivateMemory()
        super().__init__(options, memory.allocate(count * options.row_bytes), count)
        self.placement, self.parts, self.cardinalities = placement, placement.parts_of(server), placement.cardinalities
        if not memory.kept:
            self._fill(seed)

    def _fill(self, seed: int) -> None:
        """Set all rows to their initial values."""
        self.state[:] = self.options.optimizer.initial
        for part in self.parts:
            bound = 1.0 / math.sqrt(self.cardinalities[part.table])
            rows = self.weights[part.base : part.base + part.rows]
            kernels.initial_rows(rows, seed, part.table, (part.first, part.stride), bound)
            rows[:, self.options.layout.vector :] = 0.0

    def check(self, rows: np.ndarray) -> None:
        """Raise DataError if a row number is not in this arena."""
        bad = kernels.out_of_range(rows, len(self.weights))
        if bad >= 0:
            raise DataError(
                f"asked for row {rows[bad]} of {len(self.weights)}: trainer and PS differ in their placement"
            )

    def datasets(self) -> Iterator[tuple[str, np.ndarray, dict[str, Any]]]:
        """What to save, as views of the live rows: for every part ``table-TT-first-stride/weights`` (rows, width) and
        the optimizer's ``state``, (rows,) if it is one float a row, else (rows, floats).
        """
        for part in self.parts:
            rows = slice(part.base, part.base + part.rows)
            place = {"table": part.table, "first": part.first, "stride": part.stride}
            for name, values in (("weights", self.weights), ("state", self._saved_state)):
                if values.size:
                    whole = {
                        **place, "cardinality": self.cardinalities[part.table], "vector": self.options.layout.vector
                    }  # fmt: skip
                    yield f"table-{part.table:02}-{part.first}-{part.stride}/{name}", values[rows], whole

    @property
    def _saved_state(self) -> np.ndarray:
        """The state as files have it."""
        return self.state.reshape(-1) if self.state.shape[1] == 1 else self.state

    def rows_within(self, cardinalities: Sequence[int]) -> int:
        """How many of the rows belong to ids below the ``cardinalities`` of their tables."""
        ends = [(part, min(cardinalities[part.table], self.cardinalities[part.table])) for part in self.parts]
        return sum(len(range(part.first, end, part.stride)) for part, end in ends)

    def load(self, path: Path, *, widened: bool = False, state: bool = True) -> int:
        """Load the rows of this arena that a saved file holds, whatever placement saved it, and return their number.
        Tables may have been ``widened`` since: their ids begin with the saved ones. Without ``state`` that of the
        optimizer stays as it is.
        """
        taken = 0
        with h5py.File(path, "r", locking=False) as saved:
            for group in saved.values():
                for part in self.parts:
                    if part.table == group["weights"].attrs["table"]:
                        taken += self._take(path, group, part, widened, state)
        return taken

    def _take(self, path: Path, group: h5py.Group, part: Part, widened: bool, state: bool) -> int:
        """Copy the rows that a saved part and one of this arena have in common: the intersection of two stripes."""
        first, stride, cardinality = (int(group["weights"].attrs[name]) for name in ("first", "stride", "cardinality"))
        here = self.cardinalities[part.table]
        if cardinality != here and not (widened and cardinality < here):
            raise DataError(
                f"{path}: table {part.table} has {cardinality} rows, this model {here}: the "
                "weights belong to other data"
            )
        self._check_layout(path, group["weights"])
        taken = 0
        for start in range(0, part.rows, ROWS_AT_A_TIME):  # a part may be most of the memory of its PS
            ours = part.first + part.stride * np.arange(start, min(start + ROWS_AT_A_TIME, part.rows), dtype=np.int64)
            common = np.flatnonzero((ours % stride == first) & (ours < cardinality))
            if len(common):
                source, target = (ours[common] - first) // stride, part.base + start + common
                low, high = int(source[0]), int(source[-1]) + 1
                self.weights[target] = group["weights"][low:high][source - low]
                if state and self.state.size and "state" in group:
                    self._saved_state[target] = group["state"][low:high][source - low]
                taken += len(common)
        return taken

    def _check_layout(self, path: Path, saved: h5py.Dataset) -> None:
        """DataError unless the saved rows have this arena's layout; older files do not record one and hold vectors
        only.
        """
        width, ours = saved.shape[1], self.options.layout
        vector = int(saved.attrs.get("vector", width))
        if (vector, width) != (ours.vector, ours.width):
            what = f"{width} floats" if width == vector else f"{vector} floats and a first-order weight"
            raise DataError(
                f"{path}: rows of {what}, but {ours.describe()} in the settings: set model.name and embedding.dim back,"
                " and the end of model.bottom with it"
            )


class Saver(Protocol):
    """Writes an arena into a file, perhaps while it changes."""

    def begin(self, arena: Arena, path: Path, limit_seconds: float, *, background: bool) -> None:
        """Start; the rows may change again when this returns, and the limit is for that."""

    def outcome(self) -> dict[str, Any] | None:
        """``file``, ``bytes`` and ``checksum``, or ``error``; None while it is being written."""
