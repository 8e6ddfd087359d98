"""The features of a data set: number, names and kinds of its columns, as its manifest records them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ssmpi.runtime.errors import DataError

POOLINGS = ("sum", "mean")


def expected_collisions(tokens: int) -> float:
    """How many pairs of so many different tokens are expected to share a 64-bit key: of n (n - 1) / 2 pairs each does
    with probability 2^-64.
    """
    return tokens * (tokens - 1) / 2**65


@dataclass(frozen=True)
class ListOptions:
    """A sparse feature with a list of ids in each row, which may be empty. Its vector is the ``pooling`` (sum or mean)
    of the ids' rows; with ``weighted``, the sum of rows times the ids' weights. ``longest`` is the most ids that a row
    may have, ``mean_length`` how many a training row has on average, None if nobody has counted. Neither changes what a
    model reads, so both are left out of comparisons.
    """

    pooling: str = "sum"
    weighted: bool = False
    longest: int = field(default=1, compare=False)
    mean_length: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise DataError(f"pooling is 'sum' or 'mean', got {self.pooling!r}")
        if self.weighted and self.pooling == "mean":
            raise DataError("a weighted list is pooled by 'sum': divide its weights for a mean")
        if type(self.longest) is not int or self.longest < 1:
            raise DataError(f"the longest list has {self.longest!r} ids, expected 1 or more")

    @property
    def expected(self) -> float:
        """Ids in a row: their mean, or the most if that is not known."""
        return self.longest if self.mean_length is None else self.mean_length


class GroupColumn(NamedTuple):
    """Where a batch has the groups of its rows: a column of ids, as ``Batch.column`` has it, or of keys."""

    number: int
    keyed: bool


@dataclass(frozen=True)
class Features:
    """Column names in order: each ``dense`` feature is a float, each ``sparse`` feature an id in a table of its own, or
    a list of such ids if it is in ``lists``, or a 64-bit key in place of an id if it is in ``keyed``. DataError for
    invalid names.
    """

    dense: tuple[str, ...]
    sparse: tuple[str, ...]
    lists: Mapping[str, ListOptions] = field(default_factory=dict, hash=False)
    keyed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = (*self.dense, *self.sparse)
        if not all(name and isinstance(name, str) for name in names):
            raise DataError("a feature without a name")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"two features named {twice[0]!r}")
        if not self.sparse:
            raise DataError("no sparse features, and so no embedding tables to train")
        if strange := [name for name in self.lists if name not in self.sparse]:
            raise DataError(f"list feature {strange[0]!r} is no sparse feature")
        if self.keyed != tuple(name for name in self.sparse if name in self.keyed):
            raise DataError(f"keyed features {', '.join(self.keyed)}: not some of the sparse ones, in their order")
        if both := [name for name in self.keyed if name in self.lists]:
            raise DataError(f"feature {both[0]!r} is keyed and a list: lists have ids of a vocabulary")

    @property
    def one_id(self) -> tuple[str, ...]:
        """The sparse features with one id in each row, in order."""
        return tuple(name for name in self.sparse if name not in self.lists and name not in self.keyed)

    @property
    def key_columns(self) -> tuple[int, ...]:
        """Which of the sparse features are keyed, by number."""
        return tuple(self.sparse.index(name) for name in self.keyed)

    def group_column(self, name: str | None) -> GroupColumn | None:
        """That of a feature by name; None if it is none, or has a list in each row."""
        if name in self.keyed:
            return GroupColumn(self.keyed.index(name), keyed=True)
        if name not in self.one_id:
            return None
        return GroupColumn(self.sparse.index(name) if self.lists else self.one_id.index(name), keyed=False)

    @property
    def list_names(self) -> tuple[str, ...]:
        """The list features, in the order of ``sparse``."""
        return tuple(name for name in self.sparse if name in self.lists)

    @property
    def weighted(self) -> bool:
        """Whether ids of any list have weights."""
        return any(one.weighted for one in self.lists.values())

    @property
    def has_weights(self) -> bool:
        """Whether ids of a batch have weights: their own, or one divided by the length of their list."""
        return any(one.weighted or one.pooling == "mean" for one in self.lists.values())

    @property
    def ids_per_row(self) -> tuple[float, ...]:
        """How many ids a row has of each sparse feature, on average."""
        return tuple(self.lists[name].expected if name in self.lists else 1.0 for name in self.sparse)

    def record(self) -> dict[str, Any]:
        """As JSON has them. Those without lists or keys are recorded as by versions that knew none."""
        return {name: value for name, value in asdict(self).items() if value or name in ("dense", "sparse")}

    @classmethod
    def recorded(
        cls, dense: Sequence[str], sparse: Sequence[str], lists: Mapping[str, Mapping[str, Any]] | None = None,
        keyed: Sequence[str] = (),
    ) -> Features:  # fmt: skip
        """What ``record`` gave."""
        found = {name: ListOptions(**one) for name, one in (lists or {}).items()}
        return cls(tuple(dense), tuple(sparse), found, tuple(keyed))

    @classmethod
    def numbered(cls, dense: int, sparse: int) -> Features:
        """Features named like Criteo's columns: I1, I2, ... and C1, C2, ..."""
        return cls(tuple(f"I{i}" for i in range(1, dense + 1)), tuple(f"C{i}" for i in range(1, sparse + 1)))


CRITEO = Features.numbered(13, 26)  # of data sets of older versions, whose manifests record no features
