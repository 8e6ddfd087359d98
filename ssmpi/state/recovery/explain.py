"""Explains a decision of the ``policy`` in words and figures, with formulas; and what a recovery has cost."""

from __future__ import annotations

from typing import Any

from ssmpi.state.recovery.policy import LEAST_INTERVAL, Decision, Strategy

UNITS = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (0.0, 1e-3, "ms"))  # from, size, name


def explain(decision: Decision) -> list[str]:
    """Full, naive and partial recovery, and the decision, as lines of text."""
    best, partial = decision.full, decision.partial
    return [
        "  full recovery: every rank returns to the last checkpoint, and all samples since then are trained again",
        f"    T_save = T_full = sqrt(2 O_save T_fail) = {duration(best.wanted)}{_limit(decision, best)}",
        full_overhead(best),
        "  partial recovery at T_save = T_full (naive): the lost rows alone return to the last checkpoint",
        *_partial_overhead(decision.naive, "O_save"),
        "  partial recovery at the T_save that the target PLS allows",
        f"    T_save = 2 PLS N T_fail = {duration(partial.wanted)}{_limit(decision, partial)}",
        *_partial_overhead(partial, "O_rows"),
        *_conclusion(decision),
    ]


def summary(decision: Decision) -> str:
    """The policy's decision, as a clause."""
    given, partial, full = decision.given, decision.partial, decision.full
    if not decision.keeps_target:
        return (
            f"partial recovery cannot keep the target PLS of {given.target_pls:g}: it would have to save every"
            f" {duration(partial.wanted)}, and one save of all rows takes {duration(given.row_save_wall_seconds)}; at"
            f" one every {duration(partial.interval)} the expected PLS is {partial.pls:.2g}"
        )
    costs, instead = percent(partial.overhead), percent(full.overhead)
    if costs == instead:
        compared = f"costs as much as full recovery, {costs} of the job"
    else:
        less = partial.overhead < full.overhead
        stays = ", too little to change" * (less != (decision.mode == "partial"))
        compared = f"costs {'' if less else 'not '}less than full recovery: {costs} of the job against {instead}{stays}"
    return f"partial recovery {compared}, at an expected PLS of {partial.pls:.2g}"


def describe(record: dict[str, Any]) -> str:
    """The cost of a partial recovery, in a sentence."""
    parts = [
        f"{record['rows_reloaded']:,} embedding rows reloaded ("
        + ", ".join(f"{who} from {source}" for who, source in record["sources"].items())
        + f"), which miss {record['samples_lost']:,} samples"
        + ("" if record.get("updates_lost") is None else f" and {record['updates_lost']:,} updates")
    ] * bool(record["rows_reloaded"])
    if record["rows_dealt_again"]:
        parts.append(f"up to {record['rows_dealt_again']:,} rows of the data are trained on again")
    if record["accounts_lost"]:
        parts.append(f"gradients of {record['accounts_lost']} threads that were not pushed are lost")
    cost = "; ".join(parts) or "nothing but what follows from the ranks that live"
    return f"going on after {record['examples']:,} examples: {cost}. PLS is {record['pls']:.3g} so far"


def full_overhead(strategy: Strategy) -> str:
    """The overhead of full recovery, and its two parts."""
    return f"    overhead = O_save / T_save + (O_load + T_save / 2 + O_res) / T_fail = {_parts(strategy)}"


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


def _parts(strategy: Strategy) -> str:
    return f"{percent(strategy.saving)} + {percent(strategy.losses)} = {percent(strategy.overhead)}"


def _partial_overhead(strategy: Strategy, cost: str) -> list[str]:
    return [
        f"    overhead = {cost} / T_save + (O_load + O_res) / T_fail = {_parts(strategy)}",
        f"    expected PLS = T_save / (2 N T_fail) = {strategy.pls:.3g}",
    ]


def _limit(decision: Decision, strategy: Strategy) -> str:
    """The limit that changes the wanted interval; empty if none does."""
    if strategy.interval < strategy.wanted:
        return f", more than the job has: T_save = T_total = {duration(strategy.interval)}"
    if strategy.interval > strategy.wanted:
        limit = "T_total" if strategy.interval == decision.given.total_seconds else f"{LEAST_INTERVAL:g} T_rows"
        return f", too often: T_save = {limit} = {duration(strategy.interval)}"
    return ""


def _conclusion(decision: Decision) -> list[str]:
    chosen, total = decision.chosen, decision.given.total_seconds
    lines = [f"  decision: {decision.mode} recovery, a save every {duration(chosen.interval)}"]
    if decision.mode == "partial":
        lines += [
            f"    it costs {percent(chosen.overhead)} of the job, {duration(chosen.overhead * total)}, instead of "
            f"{percent(decision.full.overhead)}, {duration(decision.full.overhead * total)}",
            f"    a row misses the updates of {percent(chosen.pls)} of the job's samples on average",
        ]
    elif decision.keeps_target:
        lines += [
            f"    it costs {percent(chosen.overhead)} of the job, {duration(chosen.overhead * total)}, and loses no "
            f"sample; partial recovery costs {percent(decision.partial.overhead)}",
        ]
    else:
        lines += [
            f"    partial recovery would have to save every {duration(decision.partial.wanted)} to keep the target "
            f"PLS; one save of all rows takes {duration(decision.given.row_save_wall_seconds)}",
        ]
    if chosen.overhead >= 1:
        lines += ["    an overhead of 100 % or more is no forecast: losses come faster than the job recovers from them"]
    return lines
