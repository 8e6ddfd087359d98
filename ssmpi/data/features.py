"""The features of a data set: number, names and kinds of its columns, as its manifest records them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssmpi.core.errors import DataError


@dataclass(frozen=True)
class Features:
    """Column names in order: each ``dense`` feature is a float, each ``sparse`` feature an id in a table of its own.
    DataError for invalid names.
    """

    dense: tuple[str, ...]
    sparse: tuple[str, ...]

    def __post_init__(self) -> None:
        names = (*self.dense, *self.sparse)
        if not all(name and isinstance(name, str) for name in names):
            raise DataError("a feature without a name")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"two features named {twice[0]!r}")
        if not self.sparse:
            raise DataError("no sparse features, and so no embedding tables to train")

    @classmethod
    def recorded(cls, dense: Sequence[str], sparse: Sequence[str]) -> Features:
        """As JSON has them."""
        return cls(tuple(dense), tuple(sparse))

    @classmethod
    def numbered(cls, dense: int, sparse: int) -> Features:
        """Features named like Criteo's columns: I1, I2, ... and C1, C2, ..."""
        return cls(tuple(f"I{i}" for i in range(1, dense + 1)), tuple(f"C{i}" for i in range(1, sparse + 1)))


CRITEO = Features.numbered(13, 26)  # of data sets of older versions, whose manifests record no features
