"""``ssmpi plan --recovery``: what full and partial recovery of a lost embedding PS would cost a run, each figure with
its formula, and which pays.
"""

from __future__ import annotations

from collections.abc import Mapping

from ssmpi.config import Config
from ssmpi.embedding.placement import Placement
from ssmpi.runtime.errors import SettingsError
from ssmpi.state.recovery.policy import (
    DISK_RATE,
    INPUTS,
    LEAST_INTERVAL,
    SAVE_RATE,
    Comparison,
    RecoveryInputs,
    Strategy,
    between_checkpoints,
    compare,
    full_at,
)
from ssmpi.state.recovery.row_saves import inputs_of_run
from ssmpi.tools.units import in_units

UNITS = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (0.0, 1e-3, "ms"))  # from, size, name


def describe(config: Config, options: Mapping[str, float], placement: Placement) -> str:
    """Inputs, overheads, expected PLS and decision. ``options`` have values by the names of ``INPUTS``; they override
    the run file, which overrides estimates from the ``placement`` of rows. SettingsError names the wrong one.
    """
    if not config.topology.embedding_ps:
        raise SettingsError(
            "--recovery plans for the loss of an embedding PS, and topology.embedding_ps = 0 keeps the tables in "
            "trainer 0: set it to 1 or more"
        )
    inputs = inputs_of_run(config, placement.most_rows, options)
    comparison, size = compare(inputs), in_units(placement.most_rows * config.rows.row_bytes)
    lines = [
        "recovery, if the memory of an embedding PS is lost (first order: no loss while another is repaired):",
        *stated(inputs),
        f"  costs without an option are estimates: the largest embedding PS has {size}, written during training at"
        f" {SAVE_RATE / 1e6:g} MB/s, else at {DISK_RATE / 1e6:g} MB/s;",
        "  T_total, T_fail and O_res come from an example unless an option or the run file sets them",
        *explain(comparison),
    ]
    if config.checkpoint.every_minutes:
        lines += at_checkpoints(inputs, 60 * config.checkpoint.every_minutes)
    return "\n".join([*lines, *mode(config, comparison.mode)])


def stated(inputs: RecoveryInputs) -> list[str]:
    """Each input with its value, meaning and option."""
    lines = []
    for name, known in INPUTS.items():
        value: float = getattr(inputs, name)
        shown = f"{value:g}" if name == "target_pls" else duration(value)
        lines.append(f"  {known.symbol:8}{shown:>10}   {known.meaning} ({known.option})")
    lines.insert(2, f"  {'N':8}{inputs.servers:>8,}     embedding PSs (topology.embedding_ps)")
    return lines


def explain(comparison: Comparison) -> list[str]:
    """Full, naive and partial recovery, and the decision."""
    full, partial = comparison.full, comparison.partial
    return [
        "  full recovery: every rank returns to the last checkpoint, and all samples since then are trained again",
        f"    T_save = T_full = sqrt(2 O_save T_fail) = {duration(full.wanted)}{limit(comparison, full)}",
        full_overhead(full),
        "  partial recovery at T_save = T_full (naive): only the lost rows return to the last checkpoint",
        *partial_overhead(comparison.naive, "O_save"),
        "  partial recovery at the T_save that the target PLS allows",
        f"    T_save = 2 PLS N T_fail = {duration(partial.wanted)}{limit(comparison, partial)}",
        *partial_overhead(partial, "O_rows"),
        *conclusion(comparison),
    ]


def full_overhead(strategy: Strategy) -> str:
    """The overhead of full recovery, and its two parts."""
    return f"    overhead = O_save / T_save + (O_load + T_save / 2 + O_res) / T_fail = {parts(strategy)}"


def partial_overhead(strategy: Strategy, cost: str) -> list[str]:
    """The overhead of partial recovery where a save has this ``cost``, and its PLS."""
    return [
        f"    overhead = {cost} / T_save + (O_load + O_res) / T_fail = {parts(strategy)}",
        f"    expected PLS = T_save / (2 N T_fail) = {strategy.pls:.3g}",
    ]


def limit(comparison: Comparison, strategy: Strategy) -> str:
    """The limit that changes the wanted interval; empty if none does."""
    if strategy.interval < strategy.wanted:
        return f", more than the job has: T_save = T_total = {duration(strategy.interval)}"
    if strategy.interval > strategy.wanted:
        name = "T_total" if strategy.interval == comparison.inputs.total_seconds else f"{LEAST_INTERVAL:g} O_rows"
        return f", too often: T_save = {name} = {duration(strategy.interval)}"
    return ""


def conclusion(comparison: Comparison) -> list[str]:
    """The choice, and what it costs."""
    chosen, full, total = comparison.chosen, comparison.full, comparison.inputs.total_seconds
    cost = f"{percent(chosen.overhead)} of the job, {duration(chosen.overhead * total)}"
    lines = [f"  decision: {comparison.mode} recovery, a save every {duration(chosen.interval)}"]
    if comparison.mode == "partial":
        lines += [
            f"    it costs {cost}, instead of {percent(full.overhead)}, {duration(full.overhead * total)}",
            f"    a row misses the updates of {percent(chosen.pls)} of the job's samples on average",
        ]
    elif comparison.keeps_target:
        instead = percent(comparison.partial.overhead)
        lines += [f"    it costs {cost}, and loses no sample; partial recovery costs {instead}"]
    else:
        lines += [
            f"    partial recovery would have to save every {duration(comparison.partial.wanted)} to keep the target "
            f"PLS; one save of all rows takes {duration(comparison.inputs.row_save_seconds)}"
        ]
    if chosen.overhead >= 1:
        lines += ["    an overhead of 100 % or more is no forecast: losses come faster than the job recovers from them"]
    return lines


def at_checkpoints(inputs: RecoveryInputs, interval: float) -> list[str]:
    """What follows at the run's own ``interval`` of checkpoints in seconds."""
    saving = between_checkpoints(inputs, interval)
    does = "saves rows between checkpoints" if saving.pays else "saves rows only in checkpoints"
    return [
        f"  this run's checkpoint.every_minutes = {interval / 60:g}, with full recovery:",
        full_overhead(full_at(inputs, interval)),
        f"    row saves in between, every T_save = PLS N min(2 T_fail, T_total) = {duration(saving.interval)}:"
        f" O_rows / T_save = {percent(saving.saving)}, instead of T_ckpt / (2 T_fail) = {percent(saving.again)}",
        f"    recovery.mode = 'auto' {does}, and goes back to a checkpoint if a loss would bring the PLS above"
        f" {inputs.target_pls:g}",
    ]


def mode(config: Config, decided: str) -> list[str]:
    """What the run's settings do, if that differs from the decision."""
    asked = config.recovery.mode
    if config.recovery.may_be_partial and (why := config.recovery.why_always_full(config.topology.embedding_ps)):
        return [f"  but this run always recovers in full: {why}"]
    if asked in ("auto", decided):
        return []
    does = "the job ends when ranks are killed" if asked == "off" else f"{asked} recovery"
    return [f"  but this run's recovery.mode = '{asked}': {does}"]


def parts(strategy: Strategy) -> str:
    """Saving, losses and their sum."""
    return f"{percent(strategy.saving)} + {percent(strategy.losses)} = {percent(strategy.overhead)}"


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best."""
    size, unit = next((size, unit) for least, size, unit in UNITS if seconds >= least)
    return f"{rounded(seconds / size)} {unit}"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{rounded(100 * share)} %"


def rounded(value: float) -> str:
    """Three significant digits, or all digits before the decimal point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
