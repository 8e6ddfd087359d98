"""``ssmpi bench``: its kinds, and the functions behind them; as in ``commands`` each imports what it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.bench import options
from ssmpi.cli.commands import given_inputs
from ssmpi.cli.options import add_options, taken
from ssmpi.cli.recovery_arguments import add_inputs
from ssmpi.cli.subcommand import add, add_overrides, add_run_file
from ssmpi.files import log

if TYPE_CHECKING:
    from ssmpi.cli.subcommand import Commands


def add_benchmarks(among: Commands) -> None:
    """``bench`` and its kinds."""
    text = "measure ssmpi, its upper bounds and other programs"
    kinds = among.add_parser("bench", help=text, description=text).add_subparsers(required=True, metavar="KIND")
    text = "examples per second of all contenders, in turns, and where time goes"
    sub = add(kinds, "throughput", throughput, text)
    add_overrides(sub, "data and model (default: synthetic Criteo, Kaggle DLRM)", run_file=True)
    add_options(sub, options.ThroughputOptions)
    add_study(kinds)
    text = "how algorithms scale with trainers, with dense steps and links emulated on this host"
    sub = add(kinds, "cluster", cluster, text)
    add_overrides(sub, "a run file for its data, settings for all jobs", run_file=True)
    add_options(sub, options.ClusterOptions)
    text = "repeat a run in one process, without MPI and races, and vary its seeds one by one"
    sub = add(kinds, "lockstep", lockstep, text)
    add_run_file(sub)
    add_options(sub, options.LockstepOptions)
    text = "in lockstep: tune, then test by pairs of seeds whether shadow and foreground come to the same quality"
    sub = add(kinds, "equivalence", equivalence, text)
    sub.add_argument("study_file", type=Path, help="TOML file; see jobs/studies/lockstep")
    add_overrides(sub, "settings that override the study file")
    add_options(sub, options.EquivalenceOptions)
    text = "what codecs cost and save: nanoseconds and bytes per entry"
    add_options(add(kinds, "compression", compression, text), options.CompressionOptions)
    text = "rows per core-second of ssmpi-prepare: criteo, table with CSV and Parquet"
    add_options(add(kinds, "prepare", prepare, text), options.PrepareOptions)
    text = "what dynamic tables cost beside static ones of the same rows: nanoseconds an id of pulls and pushes"
    add_options(add(kinds, "tables", tables, text), options.TablesOptions)
    text = "what losses of embedding PSs cost and do to quality, by strategy of saving, emulated in one process"
    sub = add(kinds, "recovery", recovery, text)
    add_overrides(sub, "data and model (default: synthetic Criteo, Kaggle DLRM, 18 embedding PSs)", run_file=True)
    add_options(sub, options.EmulationOptions)
    add_inputs(sub, "the emulated job (defaults are an example's)")
    text = "the cost of starting and ending a job of many ranks on this host"
    add_options(add(kinds, "scale", scale, text), options.ScaleOptions)


def add_study(kinds: Commands) -> None:
    """``bench study``."""
    sub = add(kinds, "study", study, "run a grid of runs, each once, and make one table of them")
    sub.add_argument("study_file", type=Path, help="TOML file with axes of settings; see jobs/studies")
    add_overrides(sub, "settings that override the study file")
    mode = sub.add_mutually_exclusive_group()
    mode.add_argument("--list", action="store_true", help="print the cells with their numbers and states, run nothing")
    mode.add_argument("--cell", type=int, metavar="K", help="run cell K only (for array jobs), make no table")
    mode.add_argument("--table", action="store_true", help="make the table of the finished cells, run nothing")


def run_file_of(words: list[str]) -> Path | None:
    """Separate the run file, which may come before the overrides, from a command's words."""
    return Path(words.pop(0)) if words and "=" not in words[0] else None


def scale(arguments: argparse.Namespace) -> int:
    """``ssmpi bench scale``."""
    from ssmpi.bench import scale as bench

    bench.measure(taken(options.ScaleOptions, arguments))
    return 0


def throughput(arguments: argparse.Namespace) -> int:
    """``ssmpi bench throughput``."""
    from ssmpi.bench.throughput import throughput as bench

    given = taken(options.ThroughputOptions, arguments)
    if given.names:
        print("\n".join(bench.names(given)))
    else:
        bench.measure(given, run_file_of(arguments.overrides), arguments.overrides)
    return 0


def cluster(arguments: argparse.Namespace) -> int:
    """``ssmpi bench cluster``."""
    from ssmpi.bench import cluster as bench

    run_file = run_file_of(arguments.overrides)
    bench.measure(taken(options.ClusterOptions, arguments), run_file, arguments.overrides)
    return 0


def compression(arguments: argparse.Namespace) -> int:
    """``ssmpi bench compression``."""
    from ssmpi.bench import compression as bench

    bench.measure(taken(options.CompressionOptions, arguments))
    return 0


def prepare(arguments: argparse.Namespace) -> int:
    """``ssmpi bench prepare``."""
    from ssmpi.bench import preparation as bench

    bench.measure(taken(options.PrepareOptions, arguments))
    return 0


def tables(arguments: argparse.Namespace) -> int:
    """``ssmpi bench tables``."""
    from ssmpi.bench import tables as bench

    bench.measure(taken(options.TablesOptions, arguments))
    return 0


def recovery(arguments: argparse.Namespace) -> int:
    """``ssmpi bench recovery``."""
    from ssmpi.bench.recovery import recovery as bench

    run_file = run_file_of(arguments.overrides)
    given = taken(options.EmulationOptions, arguments, inputs=given_inputs(arguments))
    bench.measure(given, run_file, arguments.overrides)
    return 0


def study(arguments: argparse.Namespace) -> int:
    """``ssmpi bench study``."""
    from ssmpi.bench.study import study as bench
    from ssmpi.bench.study.grid import load

    log.configure("study", verbose=True)
    grid = load(arguments.study_file, arguments.overrides)
    if arguments.list:
        print(bench.describe(grid))
        return 0
    if arguments.cell is not None:
        return bench.run_one(grid, arguments.cell)
    return bench.conclude(grid) if arguments.table else bench.run_all(grid)


def lockstep(arguments: argparse.Namespace) -> int:
    """``ssmpi bench lockstep``."""
    from ssmpi.bench.lockstep import lockstep as bench
    from ssmpi.bench.lockstep.run import Lockstep
    from ssmpi.config import load

    log.configure("lockstep", verbose=True)
    given = taken(options.LockstepOptions, arguments)
    seed = given.seed
    base = Lockstep(given.gap, given.staleness, seed, seed, seed, given.interleaving, steps=given.steps)
    if given.case:
        from ssmpi.bench.lockstep import paired

        cases = paired.cases_of(
            given.case, lambda words: load(arguments.run_file, [*arguments.overrides, *words]), base
        )
        paired.measure(cases, cases[0].config.evaluate.final, given.runs, given.output)
        return 0
    bench.measure(load(arguments.run_file, arguments.overrides), base, given.vary, given.runs, given.output)
    return 0


def equivalence(arguments: argparse.Namespace) -> int:
    """``ssmpi bench equivalence``."""
    from ssmpi.bench.lockstep import study
    from ssmpi.bench.lockstep.design import load

    log.configure("equivalence", verbose=True)
    given, design = taken(options.EquivalenceOptions, arguments), load(arguments.study_file, arguments.overrides)
    if given.trials:
        return study.print_recorded(design, given.trials)
    return study.run_all(design, given.minutes, given.jobs)
