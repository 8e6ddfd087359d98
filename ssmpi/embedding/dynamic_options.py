"""The settings of dynamic tables, ``[embedding.dynamic]``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ssmpi.core.settings import COUNT, EXAMPLES, require, within
from ssmpi.embedding.key_kernels import RESERVED
from ssmpi.embedding.keyed_memory import KeyLayout

SLACK = 6.0  # standard deviations by which a PS may have more than its share of the keys


@dataclass(frozen=True)
class DynamicOptions:
    """The ``[embedding.dynamic]`` section, of every keyed feature.

    ``keys`` is the most that have rows at a time. A key gets one at its ``admit_after``-th lookup, or at each of them
    with ``admit_probability``; before that the feature's shared row serves. At a pause of training, a row that was not
    looked up for more than ``expire_after_examples`` is freed, 0 for never. A full table frees those not looked up for
    longest.
    """

    keys: int = 1_000_000
    admit_after: int = 1
    admit_probability: float = 1.0
    expire_after_examples: int = 0

    def __post_init__(self) -> None:
        within("keys", self.keys, 1, COUNT // 2)
        within("admit_after", self.admit_after, 1, COUNT)
        within("expire_after_examples", self.expire_after_examples, 0, EXAMPLES)
        require(
            0.0 < self.admit_probability <= 1.0,
            f"admit_probability must be above 0 and at most 1, got {self.admit_probability:g}",
        )
        require(
            self.admit_after == 1 or self.admit_probability == 1.0,
            f"admit_after = {self.admit_after} and admit_probability = {self.admit_probability:g} exclude each other: "
            "leave one out",
        )

    def rows(self, servers: int) -> int:
        """Rows of one feature on each of so many PSs: its share of the keys, with room for an unequal one, and the
        reserved rows.
        """
        share = self.keys / servers
        spread = SLACK * math.sqrt(share) if servers > 1 else 0.0
        return RESERVED + min(self.keys, math.ceil(share + spread))

    def layout(self, rows: int) -> KeyLayout:
        """Of the memory beside so many rows of one feature on one PS: their keys, dates and map."""
        return KeyLayout(rows, self.admit_after > 1)
