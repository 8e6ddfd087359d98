"""``python -m jobs.lab``: the commands of the laboratory; as in ``ssmpi.cli.commands`` each imports what it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from jobs.lab import options
from ssmpi import cli
from ssmpi.bench.options import CompressionOptions, add_options, taken
from ssmpi.cli.arguments import add, add_inputs, add_overrides, add_run_file
from ssmpi.cli.commands import given_inputs, run_file_of
from ssmpi.runtime.files import log


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(prog="python -m jobs.lab", description="reproduce the results of papers and pages")
    among = top.add_subparsers(required=True, metavar="COMMAND")
    text = "how algorithms scale with trainers, with dense steps and links emulated on this host"
    sub = add(among, "cluster", cluster, text)
    add_overrides(sub, "a run file for its data, settings for all jobs", run_file=True)
    add_options(sub, options.ClusterOptions)
    text = "repeat a run in one process, without MPI and races, and vary its seeds one by one"
    sub = add(among, "lockstep", lockstep, text)
    add_run_file(sub)
    add_options(sub, options.LockstepOptions)
    text = "in lockstep: tune, then test by pairs of seeds whether shadow and foreground come to the same quality"
    sub = add(among, "equivalence", equivalence, text)
    sub.add_argument("study_file", type=Path, help="TOML file; see jobs/studies/lockstep")
    add_overrides(sub, "settings that override the study file")
    add_options(sub, options.EquivalenceOptions)
    text = "what losses of embedding PSs cost and do to quality, by strategy of saving, emulated in one process"
    sub = add(among, "recovery", recovery, text)
    add_overrides(sub, "data and model (default: synthetic Criteo, Kaggle DLRM, 18 embedding PSs)", run_file=True)
    add_options(sub, options.EmulationOptions)
    add_inputs(sub, "the emulated job (defaults are an example's)")
    text = "the cost of starting and ending a job of many ranks on this host, and of resuming after a kill"
    add_options(add(among, "scale", scale, text), options.ScaleOptions)
    text = "what codecs cost in whole exchanges, and what the selection of activations costs"
    add_options(add(among, "exchanges", exchanges, text), CompressionOptions)
    sub = add(among, "recipes", recipes, "one recipe by ssmpi and by FuxiCTR, by pairs of seeds: AUC after each pass")
    add_overrides(sub, "settings that override jobs/studies/recipes.toml")
    add_options(sub, options.RecipesOptions)
    sub = add(among, "study", study, "run a grid of runs, each once, and make one table of them")
    sub.add_argument("study_file", type=Path, help="TOML file with axes of settings; see jobs/studies")
    add_overrides(sub, "settings that override the study file")
    mode = sub.add_mutually_exclusive_group()
    mode.add_argument("--list", action="store_true", help="print the cells with their numbers and states, run nothing")
    mode.add_argument("--cell", type=int, metavar="K", help="run cell K only (for array jobs), make no table")
    mode.add_argument("--table", action="store_true", help="make the table of the finished cells, run nothing")
    return top


def cluster(arguments: argparse.Namespace) -> int:
    """``python -m jobs.lab cluster``."""
    from jobs.lab import cluster as lab

    run_file = run_file_of(arguments.overrides)
    lab.measure(taken(options.ClusterOptions, arguments), run_file, arguments.overrides)
    return 0


def lockstep(arguments: argparse.Namespace) -> int:
    """``python -m jobs.lab lockstep``."""
    from jobs.lab.lockstep import lockstep as lab
    from jobs.lab.lockstep.run import Lockstep
    from ssmpi.config import load

    log.configure("lockstep", verbose=True)
    given = taken(options.LockstepOptions, arguments)
    seed = given.seed
    base = Lockstep(given.gap, given.staleness, seed, seed, seed, given.interleaving, steps=given.steps)
    if given.case:
        from jobs.lab.lockstep import paired

        cases = paired.cases_of(
            given.case, lambda words: load(arguments.run_file, [*arguments.overrides, *words]), base
        )
        paired.measure(cases, cases[0].config.evaluate.final, given.runs, given.output)
        return 0
    lab.measure(load(arguments.run_file, arguments.overrides), base, given.vary, given.runs, given.output)
    return 0


def equivalence(arguments: argparse.Namespace) -> int:
    """``python -m jobs.lab equivalence``."""
    from jobs.lab.lockstep import study
    from jobs.lab.lockstep.design import load

    log.configure("equivalence", verbose=True)
    given, design = taken(options.EquivalenceOptions, arguments), load(arguments.study_file, arguments.overrides)
    if given.trials:
        return study.print_recorded(design, given.trials)
    return study.run_all(design, given.minutes, given.jobs)


def recovery(arguments: argparse.Namespace) -> int:
    """``python -m jobs.lab recovery``."""
    from jobs.lab.recovery import recovery as lab

    run_file = run_file_of(arguments.overrides)
    given = taken(options.EmulationOptions, arguments, inputs=given_inputs(arguments))
    lab.measure(given, run_file, arguments.overrides)
    return 0


def scale(arguments: argparse.Namespace) -> int:
    """``python -m jobs.lab scale``."""
    from jobs.lab import scale as lab

    lab.measure(taken(options.ScaleOptions, arguments))
    return 0


def exchanges(arguments: argparse.Namespace) -> int:
    """``python -m jobs.lab exchanges``."""
    from jobs.lab import exchanges as lab

    lab.measure(taken(CompressionOptions, arguments))
    return 0


def recipes(arguments: argparse.Namespace) -> int:
    """``python -m jobs.lab recipes``."""
    from jobs.lab.recipes import recipes as lab

    lab.measure(taken(options.RecipesOptions, arguments), arguments.overrides)
    return 0


def study(arguments: argparse.Namespace) -> int:
    """``python -m jobs.lab study``."""
    from jobs.lab.study import study as lab
    from jobs.lab.study.grid import load

    log.configure("study", verbose=True)
    grid = load(arguments.study_file, arguments.overrides)
    if arguments.list:
        print(lab.describe(grid))
        return 0
    if arguments.cell is not None:
        return lab.run_one(grid, arguments.cell)
    return lab.conclude(grid) if arguments.table else lab.run_all(grid)


if __name__ == "__main__":
    cli.main(top=parser())
