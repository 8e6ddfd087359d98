"""Collects the inputs of the policy from several sources, and remembers where each comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ssmpi.recovery.defaults import INPUTS, inputs_of
from ssmpi.recovery.explain import duration
from ssmpi.recovery.policy import RecoveryInputs

DEFAULT, ESTIMATED, AS_SAVE, AS_ROWS, MEASURED, SETTING, GIVEN = (
    "by default", "estimated", "as O_save", "as O_rows", "measured", "by the settings", "given",
)  # fmt: skip

ROWS, WALL = "row_save_seconds", "row_save_wall_seconds"


class Source(NamedTuple):
    """Values in the form of ``inputs_of``, and their origin."""

    origin: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class KnownInputs:
    """Inputs of the policy, and the origin of each by the names of ``INPUTS``."""

    inputs: RecoveryInputs
    origins: Mapping[str, str]

    def describe(self) -> str:
        """The inputs as a clause, by origin, the most reliable first; without the number of embedding PSs, and without
        T_rows if it follows from O_rows.
        """
        said = []
        for origin in (GIVEN, MEASURED, SETTING, AS_SAVE, ESTIMATED, DEFAULT):
            if names := [name for name in INPUTS if self.origins[name] == origin]:
                said.append(", ".join(f"{INPUTS[name].symbol} {self.shown(name)}" for name in names) + f" {origin}")
        return "; ".join(said)

    def shown(self, name: str) -> str:
        """The value of an input."""
        value: float = getattr(self.inputs, name)
        return f"{value:g}" if name == "target_pls" else duration(value)


def collect(servers: int, *sources: Source) -> KnownInputs:
    """The inputs of a run with ``servers`` embedding PSs: later sources override earlier ones, and all override the
    defaults. A save of rows that is neither measured nor given is taken to cost as much as a checkpoint, if that is
    known, and to take as long as it costs.
    """
    values: dict[str, float] = {}
    origins = {**dict.fromkeys(INPUTS, DEFAULT), WALL: AS_ROWS}
    for origin, found in sources:
        if origin != ESTIMATED and "save_seconds" in found and origins[ROWS] in (DEFAULT, ESTIMATED):
            values.pop(ROWS, None)
            origins[ROWS] = AS_SAVE
        values |= found
        origins |= dict.fromkeys(found, origin)
    return KnownInputs(inputs_of(servers, values), origins)
