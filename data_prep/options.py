"""The options of a preparation, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.splits import parse_fractions
from ssmpi.data.schema import SPLITS
from ssmpi.runtime.errors import UserError

TRANSFORM = "ln(1 + max(x, 0)), missing 0"
BASE_BYTES = 256 << 20  # interpreter, compiled code and text blocks
LEAST_TABLE_BYTES = 1 << 20
RECIPE = 2  # incremented whenever the same arguments and files give different bytes


@dataclass(frozen=True)
class PrepareOptions:
    """The arguments of one preparation. ``max_ind_range`` 0 means no limit; ``split`` None is chosen from the input.
    ``extend_vocabulary`` is the vocabulary that the fitted one begins with, which has its own ``max_ind_range``.
    """

    output: Path
    min_count: int = 1
    max_ind_range: int = 0
    vocabulary: Path | None = None
    extend_vocabulary: Path | None = None
    fit_on: str = "all"
    split: str | None = None
    split_name: str | None = None
    shuffle: bool = True
    seed: int = 0
    shard_rows: int = 1 << 20
    skip_bad_rows: bool = False
    overwrite: bool = False
    memory_bytes: int = 2 << 30
    piece_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        for name, most in (("min_count", 2**40), ("shard_rows", 2**31), ("piece_bytes", 2**40)):
            if not 1 <= getattr(self, name) <= most:
                raise UserError(f"--{name.replace('_', '-')} must be between 1 and {most:,}, got {getattr(self, name)}")
        if not 0 <= self.max_ind_range < 2**32:
            raise UserError(f"--max-ind-range must be between 1 and 2**32 - 1, got {self.max_ind_range}")
        if not 0 <= self.seed < 2**62:
            raise UserError(f"--seed must be between 0 and 2**62 - 1, got {self.seed}")
        if self.split not in (None, "kaggle", "days", "none"):
            parse_fractions(self.split or "")
        if self.split_name is not None and (self.split != "none" or self.split_name not in SPLITS):
            raise UserError(f"--split-name goes with --split none and is one of {', '.join(SPLITS)}")
        if self.vocabulary is not None and (self.min_count, self.max_ind_range, self.fit_on) != (1, 0, "all"):
            raise UserError("--vocabulary brings its own --min-count, --max-ind-range and --fit-on: leave them out")

    @property
    def table_bytes(self) -> int:
        """The bound of the token tables of pass 1: writing them sorted takes up to twice their size in addition."""
        return max(LEAST_TABLE_BYTES, (self.memory_bytes - BASE_BYTES) // 3)

    def identity(self) -> dict[str, Any]:
        """Everything that the output depends on apart from the sources; no paths."""
        before, after = (
            ("min_count", "max_ind_range", "fit_on"),
            ("split", "split_name", "shuffle", "seed", "shard_rows"),
        )
        return {
            **{name: getattr(self, name) for name in before},
            "id_order": "frequency",  # the only one by now
            **{name: getattr(self, name) for name in (*after, "skip_bad_rows", "piece_bytes")},
            "vocabulary": self.vocabulary is not None,
            "recipe": RECIPE,
        }
