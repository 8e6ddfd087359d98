"""``ssmpi plan --recovery``: what full and partial recovery of a lost embedding PS would cost a run, and which pays.
``ssmpi plan --predict`` adds the overheads by number of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

from ssmpi.config import Config
from ssmpi.core.errors import SettingsError
from ssmpi.recovery.defaults import INPUTS, PS_MTBF, inputs_of
from ssmpi.recovery.explain import duration, explain, full_overhead, percent
from ssmpi.recovery.measured import from_settings
from ssmpi.recovery.policy import RecoveryInputs, decide, full_at

SETTINGS = {"target_pls": "target_pls", "mtbf_seconds": "mtbf_hours"}  # of ``[recovery]``, by input
NODES = (8, 16, 32, 64, 128, 256, 512)


def describe(config: Config, given: Mapping[str, float]) -> str:
    """Inputs, overheads, expected PLS, break-even and decision. ``given`` are options by the names of ``INPUTS``, which
    win over what the run file says; SettingsError names the one that is wrong.
    """
    servers = config.topology.embedding_ps
    if not servers:
        raise SettingsError(
            "--recovery plans for the loss of an embedding PS, and topology.embedding_ps = 0 keeps the tables in "
            "trainer 0: set it to 1 or more"
        )
    inputs = inputs_of(servers, {**from_settings(config.recovery), **given})
    minutes = config.checkpoint.every_minutes
    lines = ["recovery, if the memory of an embedding PS is lost (first order: no loss while another is repaired):"]
    if any(origin(name, config, given).startswith("default") for name in INPUTS):
        lines += ["  defaults are an example's, not this cluster's: its full recovery costs 8.3 % of a job with 18 PSs"]
    decision = decide(inputs)
    lines += [*stated(inputs, config, given), *explain(decision), *_mode(config, decision.mode)]
    if minutes:
        lines += [
            f"  this run's checkpoint.every_minutes = {minutes:g}, with full recovery:",
            full_overhead(full_at(inputs, min(60 * minutes, inputs.total_seconds))),
        ]
    return "\n".join(lines)


def stated(inputs: RecoveryInputs, config: Config, given: Mapping[str, float]) -> list[str]:
    """Each input with its value, meaning and origin."""
    lines = []
    for name, known in INPUTS.items():
        value = getattr(inputs, name)
        shown = f"{value:g}" if name == "target_pls" else duration(value)
        lines.append(f"  {known.symbol:8}{shown:>10}   {known.meaning} ({origin(name, config, given)})")
    lines.insert(2, f"  {'N':8}{inputs.servers:>8,}     embedding PSs (topology.embedding_ps)")
    return lines


def origin(name: str, config: Config, given: Mapping[str, float]) -> str:
    """Where an input comes from: an option, the run file, or the defaults."""
    if name in given:
        return "given"
    if name in from_settings(config.recovery):
        return f"recovery.{SETTINGS[name]}; {INPUTS[name].option}"
    default = {"mtbf_seconds": f"default {duration(PS_MTBF)} / N", "row_save_seconds": "as O_save"}.get(name, "default")
    setting = f", recovery.{SETTINGS[name]}" if name in SETTINGS else ""
    return f"{default}; {INPUTS[name].option}{setting}"


def _mode(config: Config, decided: str) -> list[str]:
    """What the run does, where that is not what was decided."""
    mode = config.recovery.mode
    if mode in ("auto", decided):
        return []
    does = "the job ends when ranks are killed" if mode == "off" else f"{mode} recovery all the same"
    return [f"  this run's recovery.mode = '{mode}': {does}"]


def by_nodes(config: Config, given: Mapping[str, float]) -> str:
    """Overheads of full and partial recovery for ``NODES``, if nodes fail independently of each other."""
    servers = config.topology.embedding_ps
    if not servers:
        return "overhead of recovery: not predicted, topology.embedding_ps = 0 keeps the tables in trainer 0"
    inputs, source = inputs_of(servers, {**from_settings(config.recovery), **given}), "default, an example's"
    if "mtbf_seconds" in given or config.recovery.mtbf_hours:
        name = INPUTS["mtbf_seconds"].option if "mtbf_seconds" in given else "recovery.mtbf_hours"
        source = f"{name} x N = {servers}"
    node = duration(inputs.mtbf_seconds * servers)
    lines = [
        "overhead of recovery, nodes with an embedding PS each that fail independently of each other:",
        f"  T_fail = {node} / nodes ({source}); the other inputs as --recovery states them",
        "",
        "     nodes      T_fail   full: T_save   overhead   partial: T_save   overhead        PLS   pays",
    ]
    for nodes in NODES:
        found = decide(inputs.on_nodes(nodes))
        best, partial = found.full, found.partial
        lines.append(
            f"  {nodes:8,} {duration(found.given.mtbf_seconds):>11} {duration(best.interval):>14} "
            f"{percent(best.overhead):>10} {duration(partial.interval):>17} {percent(partial.overhead):>10} "
            f"{partial.pls:10.3g}   {found.mode}"
        )
    return "\n".join(lines)
