"""``ssmpi plan --recovery``: what full and partial recovery of a lost embedding PS would cost a run, and which pays."""

from __future__ import annotations

from collections.abc import Mapping

from ssmpi.config import Config
from ssmpi.embedding.placement import Placement
from ssmpi.runtime.errors import SettingsError
from ssmpi.state.recovery.explain import duration, explain, full_overhead, percent
from ssmpi.state.recovery.inputs import (
    AS_ROWS,
    AS_SAVE,
    DEFAULT,
    DISK_RATE,
    ESTIMATED,
    GIVEN,
    INPUTS,
    PS_MTBF,
    SAVE_RATE,
    SETTING,
    KnownInputs,
    Source,
    collect,
    estimated,
    from_settings,
)
from ssmpi.state.recovery.policy import Decision, compare, compare_at
from ssmpi.tools.units import in_units

SETTINGS = {"target_pls": "target_pls", "mtbf_seconds": "mtbf_hours"}  # of ``[recovery]``, by input
NODES = (8, 16, 32, 64, 128, 256, 512)


def describe(config: Config, given: Mapping[str, float], placement: Placement) -> str:
    """Inputs, overheads, expected PLS and decision. ``given`` are options by the names of ``INPUTS``; they
    override the run file, which overrides estimates from the ``placement`` of rows. SettingsError names the wrong one.
    """
    servers = config.topology.embedding_ps
    if not servers:
        raise SettingsError(
            "--recovery plans for the loss of an embedding PS, and topology.embedding_ps = 0 keeps the tables in "
            "trainer 0: set it to 1 or more"
        )
    found, minutes = inputs_of_plan(config, given, placement), config.checkpoint.every_minutes
    inputs = found.inputs
    lines = ["recovery, if the memory of an embedding PS is lost (first order: no loss while another is repaired):"]
    if DEFAULT in found.origins.values():
        lines += ["  defaults are an example's, not this cluster's: its full recovery costs 8.3 % of a job with 18 PSs"]
    if ESTIMATED in found.origins.values():
        size = in_units(placement.most_rows * config.rows.row_bytes)
        lines += [f"  estimates are for {size}, what the embedding PS that holds most has; a run measures them"]
    decision = compare(inputs)
    lines += [*stated(found, config), *explain(decision), *_mode(config, decision.mode)]
    if minutes:
        lines += _at_checkpoints(config, compare_at(inputs, 60 * minutes, always=config.checkpoint.priority != "none"))
    return "\n".join(lines)


def _at_checkpoints(config: Config, found: Decision) -> list[str]:
    """What recovery costs at the run's own interval of checkpoints, and what "auto" does about row saves."""
    partial, between = found.partial, found.full.interval
    rows = f"rows saved every {duration(partial.interval)} beside them" * (partial.interval < between)
    does = "saves rows beside checkpoints" if found.mode == "partial" and rows else "saves rows in checkpoints alone"
    return [
        f"  this run's checkpoint.every_minutes = {config.checkpoint.every_minutes:g}, with full recovery:",
        full_overhead(found.full),
        f"    with partial recovery from checkpoints{f', {rows}' * bool(rows)}: {percent(partial.overhead)}, expected"
        f" PLS {partial.pls:.3g}",
        f"    recovery.mode = 'auto' {does}, and goes back to a checkpoint if a loss would bring the PLS above"
        f" {found.given.target_pls:g}",
    ]


def inputs_of_plan(config: Config, given: Mapping[str, float], placement: Placement) -> KnownInputs:
    """What is known before a run."""
    size, background = placement.most_rows * config.rows.row_bytes, config.checkpoint.background
    return collect(
        config.topology.embedding_ps,
        Source(ESTIMATED, estimated(size, background=background)),
        Source(SETTING, from_settings(config.recovery)),
        Source(GIVEN, given),
    )


def stated(found: KnownInputs, config: Config) -> list[str]:
    """Each input with its value, meaning and origin."""
    lines = [
        f"  {each.symbol:8}{found.shown(name):>10}   {each.meaning} ({origin(name, found, config)})"
        for name, each in INPUTS.items()
    ]
    lines.insert(2, f"  {'N':8}{found.inputs.servers:>8,}     embedding PSs (topology.embedding_ps)")
    return lines


def origin(name: str, found: KnownInputs, config: Config) -> str:
    """Where an input comes from: an option, the run file, an estimate or the defaults."""
    option, waits = INPUTS[name].option, name == "save_seconds" and not config.checkpoint.background
    rate = DISK_RATE if waits or name == "load_seconds" else SAVE_RATE
    words = {
        GIVEN: GIVEN,
        SETTING: f"recovery.{SETTINGS.get(name)}; {option}",
        ESTIMATED: f"estimate at {rate / 1e6:g} MB/s; {option}",
        AS_SAVE: f"{AS_SAVE}; {option}",
        AS_ROWS: f"{AS_ROWS}; {option}",
        DEFAULT: f"default; {option}",
    }
    if name == "mtbf_seconds":
        words[DEFAULT] = f"default {duration(PS_MTBF)} / N; {option}, recovery.{SETTINGS[name]}"
    return words[found.origins[name]]


def _mode(config: Config, decided: str) -> list[str]:
    """What the run's settings do, if that differs from the decision."""
    mode = config.recovery.mode
    if config.recovery.may_be_partial and (why := config.recovery.why_always_full(config.topology.embedding_ps)):
        return [f"  this run recovers in full all the same: {why}"]
    if mode in ("auto", decided):
        return []
    does = "the job ends when ranks are killed" if mode == "off" else f"{mode} recovery all the same"
    return [f"  this run's recovery.mode = '{mode}': {does}"]


def by_nodes(config: Config, given: Mapping[str, float], placement: Placement) -> str:
    """Overheads of full and partial recovery for ``NODES``, if nodes fail independently of each other."""
    servers = config.topology.embedding_ps
    inputs, source = inputs_of_plan(config, given, placement).inputs, "default, an example's"
    if "mtbf_seconds" in given or config.recovery.mtbf_hours:
        name = INPUTS["mtbf_seconds"].option if "mtbf_seconds" in given else "recovery.mtbf_hours"
        source = f"{name} x N = {servers}"
    node = duration(inputs.mtbf_seconds * servers)
    lines = [
        "overhead of recovery, nodes with an embedding PS each that fail independently of each other:",
        f"  T_fail = {node} / nodes ({source}); the other inputs as above",
        "",
        "     nodes      T_fail   full: T_save   overhead   partial: T_save   overhead        PLS   pays",
    ]
    for nodes in NODES:
        found = compare(inputs.on_nodes(nodes))
        best, partial = found.full, found.partial
        lines.append(
            f"  {nodes:8,} {duration(found.given.mtbf_seconds):>11} {duration(best.interval):>14} "
            f"{percent(best.overhead):>10} {duration(partial.interval):>17} {percent(partial.overhead):>10} "
            f"{partial.pls:10.3g}   {found.mode}"
        )
    return "\n".join(lines)
