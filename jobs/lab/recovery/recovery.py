"""``python -m jobs.lab recovery``: compares strategies on the same losses and seeds."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.lab.options import EmulationOptions
from jobs.lab.recovery import table
from ssmpi.bench import data, reporting
from ssmpi.bench.reporting import chosen, plain, publish, say
from ssmpi.config import Config, load
from ssmpi.data.schema import read_manifest
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.state.checkpoint.arena_writer import free_memory
from ssmpi.state.recovery.policy import RecoveryInputs, compare, full_at, inputs_of, naive_at, partial_at
from ssmpi.tools.report.groups import Estimate, estimate
from ssmpi.trainer.metrics import results

if TYPE_CHECKING:
    from jobs.lab.recovery.emulation import EmulationResult, SavingStrategy
    from jobs.lab.recovery.trials import Trials

RESULT, TRIALS = "recovery.json", "trials.jsonl"
SERVERS = "topology.embedding_ps=18"  # as in CPR's production-scale run
SMALL = ("model.bottom=[32,16]", "model.top=[32,1]", "data.batch_size=64")  # of the short mode
FRACTION = 0.125  # of the rows in a priority save (CPR)
NO_LOSS, VANILLA = "no loss", "CPR-vanilla"
UPDATES_LOST = "updates_lost", "large_lost", "batches_lost"


def measure(options: EmulationOptions, run_file: Path | None, overrides: Sequence[str]) -> Path:
    """Train under each strategy with each seed; prints the table and returns the JSON file."""
    from jobs.lab.recovery.trials import Trials

    options.folder.mkdir(parents=True, exist_ok=True)
    overrides = (SERVERS, *(SMALL if options.short else ()), *overrides) if run_file is None else tuple(overrides)
    base = data.base_run_file(run_file, overrides, options.folder, options.short)
    config: Config = load(base)
    given = checked(options, config)
    found = [s for s in strategies(given) if s.name == NO_LOSS or chosen(s.name, options.only)]
    if len(found) == 1:
        names = ", ".join(s.name for s in strategies(given)[1:])
        raise SettingsError(f"--only '{options.only}' lets no strategy through; there are: {names}")
    say(f"{len(found)} runs for each of {len(options.seeds)} seeds, on one core")
    trials = Trials(options.trials or options.folder / TRIALS)
    outcomes = [run(base, given, options, strategy, seed, trials) for seed in options.seeds for strategy in found]
    rows = [row(strategy, given, options.at_once, outcomes) for strategy in found[1:]]
    points = points_of(found[1:], outcomes)
    slopes = table.slopes(points)
    report = {
        "header": reporting.describe(),
        "options": plain(options),
        "run_file": str(base),
        "inputs": dataclasses.asdict(given),
        "outcomes": [results.plain(dataclasses.asdict(outcome)) for outcome in outcomes],
        "rows": [
            results.plain({n: dataclasses.asdict(v) if isinstance(v, Estimate) else v for n, v in line.items()})
            for line in rows
        ],
        "points": [dataclasses.asdict(point) for point in points],
        "slopes": {name: results.plain(dataclasses.asdict(slope)) for name, slope in slopes.items()},
    }
    sections = [
        table.table(given, options.at_once, rows, options.gamma_shape),
        table.against(VANILLA, rows),
        table.fits(slopes),
    ]
    text = "\n\n".join(filter(None, sections))
    return publish(options.folder / RESULT, report, text)


def checked(options: EmulationOptions, config: Config) -> RecoveryInputs:
    """The inputs of the policy; an error if the emulation cannot run with these options."""
    servers = config.topology.embedding_ps
    if not servers:
        raise SettingsError("topology.embedding_ps is 0: set how many embedding PSs the emulated job has")
    if not 1 <= options.at_once <= servers:
        raise SettingsError(
            f"--at-once is {options.at_once}, topology.embedding_ps {servers}: a loss takes 1 to {servers} of them"
        )
    manifest = read_manifest(Path(config.data.folder))
    if not (manifest.labelled and manifest.has_rows(config.evaluate.final)):
        raise SettingsError(
            f"evaluate.final = '{config.evaluate.final}' names no labelled split of {config.data.folder}"
        )
    rows, free = sum(manifest.cardinalities), free_memory()
    needed = rows * (config.rows.row_bytes + 4 * config.rows.layout.width + 12)
    if needed > free:
        raise DataError(
            f"{rows:,} rows, SCAR's copy of them and counters need {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB"
            " are free: take a data set with smaller tables"
        )
    return inputs_of(servers, options.inputs)


def strategies(given: RecoveryInputs) -> list[SavingStrategy]:
    """The run without losses, then CPR's strategies at the intervals that the policy computes."""
    from jobs.lab.recovery.emulation import SavingStrategy

    found = compare(given)
    return [
        SavingStrategy(NO_LOSS, math.inf),
        SavingStrategy("full", found.full.interval, full=True, checkpoints=True),
        SavingStrategy("naive partial", found.naive.interval, checkpoints=True),
        SavingStrategy(VANILLA, found.partial.interval),
        *(
            SavingStrategy(f"CPR-{name.upper()}", found.partial.interval, name, FRACTION)
            for name in ("scar", "mfu", "ssu")
        ),
    ]


def run(
    base: Path, given: RecoveryInputs, options: EmulationOptions, strategy: SavingStrategy, seed: int, trials: Trials
) -> EmulationResult:
    """One training run, unless it is in ``trials``; its saves are deleted afterwards."""
    from jobs.lab.recovery.emulation import RecoveryEmulation, schedule
    from jobs.lab.recovery.trials import key_of

    losses = [] if strategy.name == NO_LOSS else schedule(given, options.at_once, seed, options.gamma_shape)
    config: Config = load(base, (f"run.seed={seed}",))
    key = key_of(config, given, strategy, losses)
    if known := trials.find(key):
        return known
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        outcome = RecoveryEmulation(config, given, strategy, Path(folder)).run(losses)
    trials.note(key, outcome)
    seconds = time.monotonic() - began
    say(f"seed {seed} {strategy.name}: {outcome.losses} losses, NE {outcome.ne:.5f}, {seconds:.0f} s")
    return outcome


def row(
    strategy: SavingStrategy, given: RecoveryInputs, at_once: int, outcomes: Sequence[EmulationResult]
) -> dict[str, Any]:
    """One row of the table: means over seeds, and changes from the run with the same seed and no losses."""
    mine = [outcome for outcome in outcomes if outcome.strategy == strategy.name]
    without = {outcome.seed: outcome for outcome in outcomes if outcome.strategy == NO_LOSS}
    formula = full_at if strategy.full else naive_at if strategy.checkpoints else partial_at
    expected = formula(given, strategy.interval)
    names = "overhead", "saving", "loading", "lost", "restarting", "pls", *UPDATES_LOST, "coverage"
    return {
        "strategy": strategy.name,
        "interval_seconds": strategy.interval,
        "between_saves_seconds": strategy.between_saves,
        "losses": estimate([outcome.losses for outcome in mine]),
        **{name: estimate([getattr(outcome, name) for outcome in mine]) for name in names},
        "expected_overhead": expected.overhead,
        "expected_pls": at_once * expected.pls,
        "relative_ne": estimate([outcome.ne / without[outcome.seed].ne - 1 for outcome in mine]),
        "auc_change": estimate([outcome.auc - without[outcome.seed].auc for outcome in mine]),
    }


def points_of(found: Sequence[SavingStrategy], outcomes: Sequence[EmulationResult]) -> list[table.QualityPoint]:
    """The runs with losses that do not repeat any training."""
    without = {outcome.seed: outcome.ne for outcome in outcomes if outcome.strategy == NO_LOSS}
    partial = {strategy.name: not strategy.tracker for strategy in found if not strategy.full}
    return [
        table.QualityPoint(o.strategy, o.seed, partial[o.strategy], o.pls, o.updates_lost, o.ne / without[o.seed] - 1)
        for o in outcomes
        if o.strategy in partial and o.losses
    ]
