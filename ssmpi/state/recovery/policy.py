"""Full and partial recovery of an embedding PS whose memory is lost, after CPR (Maeng et al., MLSys 2021, arXiv
2011.02999): what each costs, how often to save, which to choose. What a run does after a loss is decided in
``decision``.

*Full* recovery takes every rank back to the last checkpoint and trains the samples since then again. *Partial* recovery
reloads only the lost rows: nothing is trained again, but the updates of those rows since their save are lost. PLS, the
portion of lost samples, measures that.

Docstrings mark formulas as CPR's or as derived here. CPR's are given in its notation: T_total, T_fail, T_save, O_save,
O_load, O_res, N. Where it has one O_save for both, here full recovery saves checkpoints, which cost O_save, and partial
recovery rows beside training, which cost O_rows. All are first order in 1/T_fail: losses are independent, and none
happens while another is repaired. Times are seconds, overheads shares of T_total.

Inputs that nobody gives (``INPUTS``) are an example, not a measurement: a job of 56 h with 18 embedding PSs loses the
memory of one every 28 h, and its costs are such that full recovery takes 8.3 % of the job. CPR's abstract says 8.2 to
8.5 %, and 0.53 to 0.68 % for partial recovery that saves the most important rows more often.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ssmpi.runtime.settings import COUNT, SECONDS, positive, within

LEAST_INTERVAL = 10.0  # of partial recovery, in multiples of O_rows
HOUR = 3600.0
PS_MTBF = 18 * 28.0  # T_fail N in hours: from one loss of the same embedding PS's memory to the next
SAVE_RATE = 500e6  # bytes a second that one processor copies, hashes and writes beside training
DISK_RATE = 200e6  # bytes a second to or from a disk when training waits for it


@dataclass(frozen=True, kw_only=True)
class RecoveryInputs:
    """The inputs of the decision; SettingsError for values that are not finite or make no sense.

    ``total_seconds`` (T_total) is the length of the job without losses and saves, ``mtbf_seconds`` (T_fail) the mean
    time between losses of memory in the whole job, each of one of ``servers`` (N) embedding PSs. ``save_seconds``
    (O_save) is what one checkpoint costs training, ``row_save_seconds`` (O_rows) what one save of all rows beside
    training takes, ``load_seconds`` (O_load) and ``restart_seconds`` (O_res) what each loss costs, whichever way it is
    recovered. ``target_pls`` is the PLS that partial recovery may reach on average, in (0, 1].
    """

    total_seconds: float
    mtbf_seconds: float
    servers: int
    save_seconds: float
    row_save_seconds: float
    load_seconds: float
    restart_seconds: float
    target_pls: float

    def __post_init__(self) -> None:
        positive("the length of the job", self.total_seconds, SECONDS)
        positive("the mean time between losses", self.mtbf_seconds, SECONDS)
        within("the number of embedding PSs", self.servers, 1, COUNT)
        positive("the cost of a checkpoint", self.save_seconds, SECONDS)
        positive("the time that a save of all rows takes", self.row_save_seconds, SECONDS)
        within("the time to load", self.load_seconds, 0.0, SECONDS)
        within("the time to restart", self.restart_seconds, 0.0, SECONDS)
        positive("the target PLS", self.target_pls, 1.0)


@dataclass(frozen=True)
class Strategy:
    """One way to save and recover. ``interval`` is T_save in seconds, ``wanted`` the same before it was limited.
    ``saving`` and ``losses`` are shares of T_total, ``pls`` is the expected one.
    """

    wanted: float
    interval: float
    saving: float
    losses: float
    pls: float

    @property
    def overhead(self) -> float:
        """Time beyond T_total as a share of T_total."""
        return self.saving + self.losses


def full_at(inputs: RecoveryInputs, interval: float) -> Strategy:
    """Full recovery with a checkpoint every ``interval`` seconds (CPR):

    O_full / T_total = O_save / T_save + (O_load + T_save / 2 + O_res) / T_fail
    """
    losses = (inputs.load_seconds + interval / 2 + inputs.restart_seconds) / inputs.mtbf_seconds
    return Strategy(interval, interval, inputs.save_seconds / interval, losses, 0.0)


def partial_at(inputs: RecoveryInputs, interval: float) -> Strategy:
    """Partial recovery with a save of all rows every ``interval`` seconds (CPR):

    O_part / T_total = O_rows / T_save + (O_load + O_res) / T_fail
    E[PLS] = T_save / (2 N T_fail)

    The expected PLS is an upper bound. Derived: what one PS loses again before the next save is counted once, so with
    x = T_save / (N T_fail) it is 1 - (1 - exp(-x)) / x = x / 2 - x^2 / 6 + ...
    """
    losses = (inputs.load_seconds + inputs.restart_seconds) / inputs.mtbf_seconds
    pls = interval / (2 * inputs.servers * inputs.mtbf_seconds)
    return Strategy(interval, interval, inputs.row_save_seconds / interval, losses, pls)


def naive_at(inputs: RecoveryInputs, interval: float) -> Strategy:
    """Partial recovery from checkpoints, one every ``interval`` seconds: O_save takes the place of O_rows."""
    return partial_at(replace(inputs, row_save_seconds=inputs.save_seconds), interval)


def full(inputs: RecoveryInputs) -> Strategy:
    """Full recovery at its best interval, sqrt(2 O_save T_fail) (Young 1974, CPR); derived: at most T_total."""
    wanted = math.sqrt(2 * inputs.save_seconds * inputs.mtbf_seconds)
    return replace(full_at(inputs, min(wanted, inputs.total_seconds)), wanted=wanted)


def partial(inputs: RecoveryInputs) -> Strategy:
    """Partial recovery at the interval whose expected PLS is the target, 2 PLS N T_fail (CPR).

    Derived: at most T_total, because the initial rows are a function of the seed and need no save, and at least 10
    O_rows, which misses the target.
    """
    wanted = 2 * inputs.target_pls * inputs.servers * inputs.mtbf_seconds
    interval = min(max(wanted, LEAST_INTERVAL * inputs.row_save_seconds), inputs.total_seconds)
    return replace(partial_at(inputs, interval), wanted=wanted)


@dataclass(frozen=True)
class Comparison:
    """The strategies side by side. ``naive`` is partial recovery from the checkpoints of full recovery."""

    inputs: RecoveryInputs
    full: Strategy
    naive: Strategy
    partial: Strategy

    @property
    def keeps_target(self) -> bool:
        """Whether partial recovery can save often enough to keep the target PLS."""
        return self.partial.interval <= self.partial.wanted

    @property
    def mode(self) -> Literal["full", "partial"]:
        """``partial`` if it keeps the target PLS (derived) and costs less than full recovery (CPR)."""
        return "partial" if self.keeps_target and self.partial.overhead < self.full.overhead else "full"

    @property
    def chosen(self) -> Strategy:
        """The strategy of ``mode``."""
        return self.partial if self.mode == "partial" else self.full


def compare(inputs: RecoveryInputs) -> Comparison:
    """Compare full recovery at its best interval with partial recovery at the interval of the target PLS (CPR)."""
    best = full(inputs)
    return Comparison(inputs, best, naive_at(inputs, best.interval), partial(inputs))


@dataclass(frozen=True)
class RowSaving:
    """Rows saved every ``interval`` seconds between the checkpoints of a run, which writes these whichever way it
    recovers. Shares of T_total: that costs ``saving``, and full recovery would train ``again``.
    """

    interval: float
    saving: float
    again: float
    keeps_target: bool

    @property
    def pays(self) -> bool:
        """Whether the run saves rows between checkpoints."""
        return self.keeps_target and self.saving < self.again


def between_checkpoints(inputs: RecoveryInputs, checkpoints: float) -> RowSaving:
    """Derived: CPR's comparison for a run with a checkpoint every ``checkpoints`` (T_ckpt) seconds, infinity for none.
    What both ways have in common is left out:

    O_rows / T_save < T_ckpt / (2 T_fail)     with T_save = PLS N min(2 T_fail, T_total)

    That T_save is CPR's, which keeps the target PLS on average over all losses, but at most PLS N T_total: then a
    single loss right before a save costs no more than the target.
    """
    interval = inputs.target_pls * inputs.servers * min(2 * inputs.mtbf_seconds, inputs.total_seconds)
    return RowSaving(
        interval,
        inputs.row_save_seconds / interval,
        min(checkpoints, inputs.total_seconds) / (2 * inputs.mtbf_seconds),
        LEAST_INTERVAL * inputs.row_save_seconds <= interval,
    )


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
