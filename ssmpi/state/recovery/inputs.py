"""The inputs of the policy: options, meanings and defaults; the estimates, settings and measurements that override
them, and where each value comes from.

The defaults are an example, not a measurement: a job of 56 h with 18 embedding PSs loses the memory of one every 28 h,
and its costs are such that full recovery takes 8.3 % of the job. CPR's abstract (arXiv 2011.02999) says 8.2 to 8.5 %,
and 0.53 to 0.68 % for partial recovery that saves the most important rows more often. Inputs that depend on the amount
of data to save are estimated instead if the table sizes are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from ssmpi.runtime.settings import SECONDS, positive, within
from ssmpi.state.recovery.explain import duration
from ssmpi.state.recovery.policy import RecoveryInputs

if TYPE_CHECKING:
    from ssmpi.runtime.run_options import RecoveryOptions

HOUR = 3600.0
PS_MTBF = 18 * 28 * HOUR  # T_fail N: the mean time between two losses of the same embedding PS's memory
SAVE_RATE = 500e6  # bytes a second that one processor copies, hashes and writes beside training
DISK_RATE = 200e6  # bytes a second to or from a disk when training waits for it


@dataclass(frozen=True)
class Input:
    """An input with its symbol and option. The option's value is in units of ``unit`` seconds, at most ``most``, and
    may be 0 with ``or_zero``; ``default`` has the same unit.
    """

    symbol: str
    option: str
    meaning: str
    default: float
    unit: float = 1.0
    most: float = SECONDS
    or_zero: bool = False

    def taken(self, value: float) -> float:
        """The value of the option, in seconds or without a unit; SettingsError names the option."""
        if self.or_zero:
            within(self.option, value, 0.0, self.most)
        else:
            positive(self.option, value, self.most)
        return value * self.unit


INPUTS = {
    "total_seconds": Input(
        "T_total", "--job-hours", "length of the job without losses and saves", 56.0, HOUR, SECONDS / HOUR
    ),
    "mtbf_seconds": Input(
        "T_fail", "--mtbf-hours", "mean time between losses of an embedding PS's memory", 28.0, HOUR, SECONDS / HOUR
    ),
    "save_seconds": Input("O_save", "--save-seconds", "what one checkpoint costs training, as runs log it", 324.0),
    "row_save_seconds": Input(
        "O_rows", "--row-save-seconds", "what one save of all rows beside training costs it", 324.0
    ),
    "row_save_wall_seconds": Input(
        "T_rows", "--row-save-wall-seconds", "from begin to end of one save of all rows beside training", 324.0
    ),
    "load_seconds": Input("O_load", "--load-seconds", "loading a checkpoint after a loss", 180.0, or_zero=True),
    "restart_seconds": Input(
        "O_res", "--restart-seconds", "from a loss to training, without loading: queue, start", 144.0, or_zero=True
    ),
    "target_pls": Input("PLS", "--target-pls", "portion of lost samples that is accepted", 0.1, most=1.0),
}


def estimated(size: float, *, background: bool) -> dict[str, float]:
    """Estimated costs of saves and loads, in the form of ``inputs_of``, if the largest embedding PS has ``size`` bytes
    and checkpoints are written in the ``background``, or while training waits.
    """
    save = size / (SAVE_RATE if background else DISK_RATE)
    return {"save_seconds": save, "row_save_seconds": size / SAVE_RATE, "load_seconds": size / DISK_RATE}


def inputs_of(servers: int, given: Mapping[str, float]) -> RecoveryInputs:
    """The inputs of a run with ``servers`` embedding PSs. ``given`` has values of options by the names of ``INPUTS``;
    the others are defaults. The default of T_fail is 504 h / N, 28 h for the example's 18 PSs; that of O_rows is
    O_save, and that of T_rows is O_rows, as if a save never waited for its disk.
    """
    values = {name: known.taken(given.get(name, known.default)) for name, known in INPUTS.items()}
    if "mtbf_seconds" not in given:
        values["mtbf_seconds"] = PS_MTBF / servers
    if "row_save_seconds" not in given:
        values["row_save_seconds"] = values["save_seconds"]
    if "row_save_wall_seconds" not in given:
        values["row_save_wall_seconds"] = values["row_save_seconds"]
    return RecoveryInputs(servers=servers, **values)


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


def from_settings(options: RecoveryOptions) -> dict[str, float]:
    """The inputs in the run file, in the form of ``inputs_of``."""
    mtbf = {"mtbf_seconds": options.mtbf_hours} if options.mtbf_hours else {}
    return {"target_pls": options.target_pls, **mtbf}


def from_run(
    log: Mapping[str, float], expected: int, recoveries: Sequence[Mapping[str, Any]], row_save_cost: float = 0.0,
    row_save_wall: float = 0.0,
) -> dict[str, float]:  # fmt: skip
    """What a run has measured so far, in the form of ``inputs_of``: ``log`` are the numbers of its metric logger,
    ``expected`` the total examples of the run, ``recoveries`` those of ``recoveries.json``; ``row_save_cost`` is the
    cost of a save of all rows during training, ``row_save_wall`` its duration, 0 before the first one.
    """
    found = {}
    if log.get("examples") and log.get("seconds"):
        found["total_seconds"] = log["seconds"] / log["examples"] * expected / HOUR
    if log.get("checkpoints") and log.get("O_save"):
        found["save_seconds"] = log["O_save"] / log["checkpoints"]
    if row_save_cost:
        found["row_save_seconds"] = row_save_cost
    if row_save_wall:
        found["row_save_wall_seconds"] = row_save_wall
    seconds = [each["seconds"] for each in recoveries]
    if restarts := [each["ranks"] + each.get("restore", 0.0) for each in seconds if each.get("ranks")]:
        found["restart_seconds"] = fmean(restarts)
    if loads := [each["load"] for each in seconds if each.get("load")]:
        found["load_seconds"] = fmean(loads)
    return {name: value for name, value in found.items() if 0 < value <= INPUTS[name].most}  # hosts' clocks may differ
