"""The settings of dynamic tables, ``[embedding.dynamic]``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ssmpi.embedding.key_kernels import RESERVED
from ssmpi.runtime.errors import SettingsError
from ssmpi.runtime.settings import COUNT, EXAMPLES, require, suggestion, within

SLACK = 6.0  # standard deviations by which the saved keys of a PS may be more than its share


@dataclass(frozen=True)
class KeyOptions:
    """How the keys of a feature get and lose rows."""

    keys: int = 1_000_000
    """Most keys of a feature with rows at a time. A full table frees the rows that were unused for longest."""
    admit_after: int = 1
    """Lookup at which a key gets a row. Until then it uses the feature's shared row."""
    admit_probability: float = 1.0
    """Probability that a lookup gives a key a row, drawn by key and seed."""
    expire_after_examples: int = 0
    """A pause of training frees the rows that were not looked up for more examples than this; 0: never."""

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

    @property
    def counts(self) -> bool:
        """Whether lookups of keys without a row are counted."""
        return self.admit_after > 1 or self.admit_probability < 1.0

    def share(self, first: int, stride: int) -> KeyOptions:
        """Those of the PS that has stripe ``first`` of ``stride``: together PSs admit no more than ``keys``."""
        return dataclasses.replace(self, keys=max(1, len(range(first, self.keys, stride))))

    def rows(self, servers: int) -> int:
        """Rows of one feature on each of so many PSs: its share of the keys, room for an unequal one, which other
        numbers of PSs may have saved, and the reserved rows.
        """
        share = self.keys / servers
        spread = SLACK * math.sqrt(share) if servers > 1 else 0.0
        return RESERVED + min(self.keys, math.ceil(share + spread))


@dataclass(frozen=True)
class FeatureOptions:
    """An ``[embedding.dynamic.features.NAME]`` section: what is different for one feature, None what is not. A way of
    admission replaces both.
    """

    keys: int | None = None
    admit_after: int | None = None
    admit_probability: float | None = None
    expire_after_examples: int | None = None


@dataclass(frozen=True)
class DynamicOptions(KeyOptions):
    """The ``[embedding.dynamic]`` section, for every keyed feature; ``features`` has exceptions."""

    features: dict[str, FeatureOptions] = field(default_factory=dict, hash=False)
    """Sections ``[embedding.dynamic.features.NAME]``: these settings for one feature. Either way of admission replaces
    both.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.features:
            try:
                self.of(name)
            except SettingsError as error:
                raise SettingsError(f"features.{name}.{error}") from None

    def of(self, feature: str) -> KeyOptions:
        """Those of one feature."""
        own = {
            name: value
            for name, value in vars(self.features.get(feature, FeatureOptions())).items()
            if value is not None
        }
        common = {each.name: getattr(self, each.name) for each in dataclasses.fields(KeyOptions)}
        if {"admit_after", "admit_probability"} & own.keys():
            del common["admit_after"], common["admit_probability"]
        return KeyOptions(**(common | own))

    def for_keys(self, counts: Mapping[str, int]) -> DynamicOptions:
        """With room for so many keys of features, by name."""
        more = {
            name: dataclasses.replace(self.features.get(name, FeatureOptions()), keys=count)
            for name, count in counts.items()
            if count > self.of(name).keys
        }
        return dataclasses.replace(self, features=self.features | more)

    def check(self, keyed: Sequence[str]) -> None:
        """SettingsError if a feature is named that is not among the ``keyed`` ones."""
        for name in self.features:
            require(
                name in keyed,
                f"embedding.dynamic.features.{name}: the data has no such feature with keys{suggestion(name, keyed)}",
            )
