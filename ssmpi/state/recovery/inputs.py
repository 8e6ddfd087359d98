"""The inputs of the ``policy``: the options of ``ssmpi plan --recovery``, and what is assumed without them.

The defaults are an example, not a measurement: a job of 56 h with 18 embedding PSs loses the memory of one every 28 h,
and its costs are such that full recovery takes 8.3 % of the job. CPR's abstract (arXiv 2011.02999) says 8.2 to 8.5 %,
and 0.53 to 0.68 % for partial recovery that saves the most important rows more often.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ssmpi.runtime.settings import SECONDS, positive, within
from ssmpi.state.recovery.policy import RecoveryInputs

HOUR = 3600.0
PS_MTBF = 18 * 28.0  # T_fail N in hours: from one loss of the same embedding PS's memory to the next
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
        "O_rows", "--row-save-seconds", "what one save of all rows beside training takes", 324.0
    ),
    "load_seconds": Input("O_load", "--load-seconds", "loading a checkpoint after a loss", 180.0, or_zero=True),
    "restart_seconds": Input(
        "O_res", "--restart-seconds", "from a loss to training, without loading: queue, start", 144.0, or_zero=True
    ),
    "target_pls": Input("PLS", "--target-pls", "portion of lost samples that is accepted", 0.1, most=1.0),
}  # fmt: skip


def inputs_of(
    servers: int, options: Mapping[str, float], size: float = 0.0, *, background: bool = True
) -> RecoveryInputs:
    """The inputs of a job with ``servers`` embedding PSs. ``options`` has values by the names of ``INPUTS``. Other
    costs are estimated from the ``size`` in bytes of the largest embedding PS, if it is known, and from whether
    checkpoints are written in the ``background``; a save of rows is taken to cost what a checkpoint is said to cost.
    The rest is the example's.
    """
    values = {name: known.default for name, known in INPUTS.items()} | {"mtbf_seconds": PS_MTBF / servers}
    if size:
        values["save_seconds"] = size / (SAVE_RATE if background else DISK_RATE)
        values |= {"row_save_seconds": size / SAVE_RATE, "load_seconds": size / DISK_RATE}
    if "save_seconds" in options:
        values["row_save_seconds"] = options["save_seconds"]
    values |= options
    return RecoveryInputs(servers=servers, **{name: known.taken(values[name]) for name, known in INPUTS.items()})
