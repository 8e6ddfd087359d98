"""Whether rows are saved for partial recovery, and how often, after CPR (Maeng et al., MLSys 2021, arXiv
2011.02999). What a run does after a loss is decided in ``choice``.

When the memory of an embedding PS is lost, *full* recovery takes every rank back to the last checkpoint and trains the
samples since then again. *Partial* recovery reloads only the lost rows: nothing is trained again, but the updates of
those rows since their save are lost. PLS, the portion of lost samples, measures that.

Docstrings mark formulas as CPR's or as derived here. CPR's are given in its notation: T_total, T_fail, T_save, O_save,
O_load, O_res, N. Where it has one O_save for both, here full recovery saves checkpoints, which cost O_save, and partial
recovery rows beside training, which cost O_rows and take T_rows. All are first order in 1/T_fail: losses are
independent, and none happens while another is repaired.
Times are seconds, overheads shares of T_total.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from ssmpi.runtime.settings import COUNT, SECONDS, positive, within

Mode = Literal["full", "partial"]
CHANGE = 0.1  # the least saving, as a share of its overhead, for which a run changes its way of recovery
LEAST_INTERVAL = 10.0  # of partial recovery, in multiples of T_rows


@dataclass(frozen=True, kw_only=True)
class RecoveryInputs:
    """The inputs of the decision; SettingsError for values that are not finite or make no sense.

    ``total_seconds`` (T_total) is the length of the job without losses and saves, ``mtbf_seconds`` (T_fail) the mean
    time between losses of memory in the whole job, each of one of ``servers`` (N) embedding PSs. ``save_seconds``
    (O_save) is what one checkpoint costs training, slowdown by writing in the background included, ``row_save_seconds``
    (O_rows) the same of one save of all rows beside training, and ``row_save_wall_seconds`` (T_rows) what that takes
    from begin to end, waiting for its disk included; ``load_seconds`` (O_load) and ``restart_seconds`` (O_res) what
    each loss costs, whichever way it is recovered. ``target_pls`` is the PLS that partial recovery may reach on
    average, in (0, 1].
    """

    total_seconds: float
    mtbf_seconds: float
    servers: int
    save_seconds: float
    row_save_seconds: float
    row_save_wall_seconds: float
    load_seconds: float
    restart_seconds: float
    target_pls: float

    def __post_init__(self) -> None:
        positive("the length of the job", self.total_seconds, SECONDS)
        positive("the mean time between losses", self.mtbf_seconds, SECONDS)
        within("the number of embedding PSs", self.servers, 1, COUNT)
        positive("the cost of a checkpoint", self.save_seconds, SECONDS)
        positive("the cost of a save of all rows", self.row_save_seconds, SECONDS)
        positive("the time that a save of all rows takes", self.row_save_wall_seconds, SECONDS)
        within("the time to load", self.load_seconds, 0.0, SECONDS)
        within("the time to restart", self.restart_seconds, 0.0, SECONDS)
        positive("the target PLS", self.target_pls, 1.0)

    @property
    def least_interval(self) -> float:
        """Derived: the shortest interval of partial recovery in seconds, 10 T_rows; for a shorter job its length."""
        return min(LEAST_INTERVAL * self.row_save_wall_seconds, self.total_seconds)

    def on_nodes(self, nodes: int) -> RecoveryInputs:
        """The same job on ``nodes`` nodes with an embedding PS each, if it now has one on each of ``servers`` nodes.

        Derived for nodes that fail independently: T_fail N does not change. PSs on a part of the nodes have the same
        expected PLS: fewer losses hit them, and each takes as many times more of the rows.
        """
        return replace(self, servers=nodes, mtbf_seconds=self.mtbf_seconds * self.servers / nodes)


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


def full_at(given: RecoveryInputs, interval: float) -> Strategy:
    """Full recovery with a checkpoint every ``interval`` seconds (CPR):

    O_full / T_total = O_save / T_save + (O_load + T_save / 2 + O_res) / T_fail
    """
    losses = (given.load_seconds + interval / 2 + given.restart_seconds) / given.mtbf_seconds
    return Strategy(interval, interval, given.save_seconds / interval, losses, 0.0)


def partial_at(given: RecoveryInputs, interval: float) -> Strategy:
    """Partial recovery with a save of all rows every ``interval`` seconds (CPR):

    O_part / T_total = O_rows / T_save + (O_load + O_res) / T_fail
    E[PLS] = T_save / (2 N T_fail)

    The expected PLS is an upper bound. Derived: what one PS loses again before the next save is counted once, so with
    x = T_save / (N T_fail) it is 1 - (1 - exp(-x)) / x = x / 2 - x^2 / 6 + ...
    """
    losses = (given.load_seconds + given.restart_seconds) / given.mtbf_seconds
    pls = interval / (2 * given.servers * given.mtbf_seconds)
    return Strategy(interval, interval, given.row_save_seconds / interval, losses, pls)


def naive_at(given: RecoveryInputs, interval: float) -> Strategy:
    """Partial recovery from checkpoints, one every ``interval`` seconds: O_save takes the place of O_rows."""
    return partial_at(replace(given, row_save_seconds=given.save_seconds), interval)


def full(given: RecoveryInputs) -> Strategy:
    """Full recovery at its best interval, sqrt(2 O_save T_fail) (Young 1974, CPR); derived: at most T_total."""
    wanted = math.sqrt(2 * given.save_seconds * given.mtbf_seconds)
    return replace(full_at(given, min(wanted, given.total_seconds)), wanted=wanted)


def partial(given: RecoveryInputs) -> Strategy:
    """Partial recovery at the interval whose expected PLS is the target, 2 PLS N T_fail (CPR).

    Derived: at most T_total, because the initial rows are a function of the seed and need no save, and at least
    ``least_interval``, which misses the target.
    """
    wanted = 2 * given.target_pls * given.servers * given.mtbf_seconds
    interval = min(max(wanted, given.least_interval), given.total_seconds)
    return replace(partial_at(given, interval), wanted=wanted)


def rows_wanted(given: RecoveryInputs) -> float:
    """T_save of rows in seconds: CPR's, which keeps the target PLS on average over all losses, but at most PLS N
    T_total (derived): then a single loss right before a save costs no more than the target.
    """
    return given.target_pls * given.servers * min(2 * given.mtbf_seconds, given.total_seconds)


@dataclass(frozen=True)
class Decision:
    """The strategies side by side. ``naive`` is partial recovery from the checkpoints of full recovery; ``before`` is
    how the run recovers so far, if it runs.
    """

    given: RecoveryInputs
    full: Strategy
    naive: Strategy
    partial: Strategy
    before: Mode | None = None

    @property
    def keeps_target(self) -> bool:
        """Whether partial recovery can save often enough to keep the target PLS."""
        return self.partial.interval <= self.partial.wanted

    @property
    def mode(self) -> Mode:
        """``partial`` if it keeps the target PLS (derived) and costs less than full recovery (CPR). If both cost nearly
        the same a run keeps its present mode (derived): measured inputs fluctuate.
        """
        stays = {None: 1.0, "partial": 1 / (1 - CHANGE), "full": 1 - CHANGE}[self.before]
        return "partial" if self.keeps_target and self.partial.overhead < stays * self.full.overhead else "full"

    @property
    def chosen(self) -> Strategy:
        """The strategy of ``mode``."""
        return self.partial if self.mode == "partial" else self.full


def compare(given: RecoveryInputs, before: Mode | None = None) -> Decision:
    """Compare full recovery at its best interval with partial recovery at the interval of the target PLS (CPR)."""
    best = full(given)
    return Decision(given, best, naive_at(given, best.interval), partial(given), before)


def compare_at(
    given: RecoveryInputs, checkpoints: float, *, always: bool = False, before: Mode | None = None
) -> Decision:
    """The same for a run that writes a checkpoint every ``checkpoints`` seconds, infinity for none, whichever way it
    recovers (derived). Rows are saved at T_save = ``rows_wanted`` after a save or checkpoint, so never if checkpoints
    come more often; with ``always``, as for priorities, whether there was a checkpoint or not.
    """
    total = given.total_seconds
    saving = given.save_seconds / checkpoints if checkpoints < total else 0.0
    between, wanted = min(checkpoints, total), rows_wanted(given)
    interval = min(max(wanted, given.least_interval), total if always else between)
    saves = 1 / interval if always else (math.ceil(between / interval) - 1) / between
    best = full_at(given, between)
    part = partial_at(given, interval)
    return Decision(
        given,
        replace(best, saving=saving),
        replace(naive_at(given, between), saving=saving),
        replace(part, wanted=wanted, saving=saving + saves * given.row_save_seconds),
        before,
    )
