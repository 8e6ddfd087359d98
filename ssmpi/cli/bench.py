"""The functions behind ``ssmpi bench``; as in ``commands`` each imports what it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from ssmpi.cli.commands import given_inputs, numbers
from ssmpi.core.errors import SettingsError
from ssmpi.files import log


def run_file_of(words: list[str]) -> Path | None:
    """Separate the run file, which may come before the overrides, from a command's words."""
    return Path(words.pop(0)) if words and "=" not in words[0] else None


def scale(arguments: argparse.Namespace) -> int:
    """``ssmpi bench scale``."""
    from ssmpi.bench import scale as bench

    bench.measure(bench.counts_of(arguments.ranks), arguments.folder, arguments.kills)
    return 0


def throughput(arguments: argparse.Namespace) -> int:
    """``ssmpi bench throughput``."""
    from ssmpi.bench.throughput import throughput as bench

    words = arguments.overrides
    run_file = run_file_of(words)
    batches = numbers("--batch", arguments.batch)
    try:
        shares = tuple(float(word) for word in arguments.shares.split(","))
    except ValueError:
        raise SettingsError(f"--shares takes a comma-separated list of numbers, got '{arguments.shares}'") from None
    options = bench.ThroughputOptions(
        arguments.folder, arguments.rounds, arguments.seconds, batches, arguments.only, shares
    )
    bench.measure(bench.short(options) if arguments.short else options, run_file, words)
    return 0


def cluster(arguments: argparse.Namespace) -> int:
    """``ssmpi bench cluster``."""
    from ssmpi.bench import cluster as bench

    words = arguments.overrides
    run_file = run_file_of(words)
    options = bench.ClusterOptions(
        folder=arguments.folder,
        trainers=numbers("--trainers", arguments.trainers),
        step_ms=arguments.step_ms,
        link_mb=arguments.link_mb,
        embedding_link_mb=arguments.embedding_link_mb,
        seconds=arguments.seconds,
        only=arguments.only,
        virtual_hosts=arguments.virtual_hosts,
    )
    bench.measure(options, run_file, words)
    return 0


def compression(arguments: argparse.Namespace) -> int:
    """``ssmpi bench compression``."""
    from ssmpi.bench.compression import speed

    speed.measure(arguments.codecs.split(","), arguments.entries, arguments.rounds, arguments.out)
    return 0


def recovery(arguments: argparse.Namespace) -> int:
    """``ssmpi bench recovery``."""
    from ssmpi.bench.recovery import recovery as bench

    words, given = arguments.overrides, given_inputs(arguments)
    run_file = run_file_of(words)
    seeds = numbers("--seeds", arguments.seeds)
    options = bench.EmulationOptions(
        arguments.folder, seeds, arguments.at_once, arguments.only, arguments.short, given, arguments.gamma_shape,
        arguments.trials,
    )  # fmt: skip
    bench.measure(options, run_file, words)
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
    seed = arguments.seed
    given = Lockstep(
        arguments.gap, arguments.staleness, seed, seed, seed, arguments.interleaving, steps=arguments.steps,
        feedback=not arguments.no_feedback,
    )  # fmt: skip
    if arguments.case:
        from ssmpi.bench.lockstep import paired

        cases = paired.cases_of(
            arguments.case, lambda words: load(arguments.run_file, [*arguments.overrides, *words]), given
        )
        paired.measure(cases, cases[0].config.evaluate.final, arguments.runs, arguments.out)
        return 0
    vary = [name for name in arguments.vary.split(",") if name]
    bench.measure(load(arguments.run_file, arguments.overrides), given, vary, arguments.runs, arguments.out)
    return 0


def equivalence(arguments: argparse.Namespace) -> int:
    """``ssmpi bench equivalence``."""
    from ssmpi.bench.lockstep import study
    from ssmpi.bench.lockstep.design import load

    log.configure("equivalence", verbose=True)
    design = load(arguments.study_file, arguments.overrides)
    if arguments.trials:
        return study.print_recorded(design, arguments.trials)
    return study.run_all(design, arguments.minutes, arguments.jobs)
