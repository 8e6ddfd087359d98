"""What each command does with its parsed arguments: call the module that does the work, print its result, and return
the exit code. That module is imported in the function, because MPI, torch and the like take seconds to import.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.comm import signals
from ssmpi.core import log
from ssmpi.core.errors import STOPPED, SettingsError

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.run.request import RunRequest


def train(arguments: argparse.Namespace) -> int:
    """``ssmpi train``, on every rank."""
    signals.listen()
    from ssmpi.comm.world import joined

    log.set_terminal(arguments.terminal)
    with joined() as job, contextlib.ExitStack() as held:
        from ssmpi import train as story
        from ssmpi.report import plot
        from ssmpi.run import resume  # in the job, so that an error here is printed once

        log.configure(job.who, verbose=job.rank == 0)
        start = job.agree(lambda: resume.prepare(requested(arguments), job.size, held))
        path = Path(start.config.run.folder)
        if start.finished:
            if job.rank == 0:
                print(f"{path}: this run is finished; 'ssmpi summary {path}' shows its result")
            job.leave()
            return 0
        finished = story.run(job, start.config, path, resume.choose_checkpoint(job, start))
        if job.rank == 0 and finished:  # a stop must be quick
            plot(path)
        stopped = job.leave(stopped=not finished)  # last: a launcher ends the others when a rank exits with a code
    return STOPPED if stopped else 0


def requested(arguments: argparse.Namespace) -> RunRequest:
    """The run that ``train`` or ``launch`` was asked for."""
    from ssmpi.run.request import RunRequest

    run_file, overrides = arguments.run_file, list(arguments.overrides)
    if arguments.resume and run_file and "=" in str(run_file):  # with --resume the run file may be left out
        run_file, overrides = None, [str(run_file), *overrides]
    if not run_file and not arguments.resume:
        raise SettingsError("name a run file, or --resume RUN")
    if arguments.checkpoint and not arguments.resume:
        raise SettingsError("--checkpoint requires --resume RUN")
    return RunRequest(run_file, overrides, arguments.overwrite, arguments.resume, arguments.checkpoint)


def launch(arguments: argparse.Namespace) -> int:
    """``ssmpi launch``."""
    from ssmpi.cluster import launch as launcher

    return launcher.launch(requested(arguments), arguments.site, arguments.dry_run)


def submit(arguments: argparse.Namespace) -> int:
    """``ssmpi submit``."""
    from ssmpi.cluster import submit as submitter
    from ssmpi.config import load

    return submitter.submit(load(arguments.run_file, arguments.overrides), arguments.site, arguments.dry_run)


def plan(arguments: argparse.Namespace) -> int:
    """``ssmpi plan``."""
    from ssmpi.cluster import site
    from ssmpi.config import load
    from ssmpi.tools import plan as planner

    where = site.load(arguments.site) if arguments.site else None
    config = load(arguments.run_file, arguments.overrides)
    more = "\n\n" + predicted(config, arguments) if arguments.predict else ""
    print(planner.describe(config, where, arguments.tables) + more)
    return 0


def predicted(config: Config, arguments: argparse.Namespace) -> str:
    """What ``--predict`` adds to a plan."""
    from ssmpi.tools import forecast

    if arguments.step_ms is None or arguments.link_mb is None:
        raise SettingsError("--predict needs --step-ms ('ssmpi bench throughput' measures it) and --link-mb")
    if arguments.tables:
        raise SettingsError("--predict samples batches of the prepared data: prepare it, and leave out --tables")
    speed = 1e6 * arguments.link_mb
    links = forecast.LinkSpeeds(speed, speed, speed)
    return forecast.describe(config, arguments.step_ms / 1e3, links, numbers("--trainers", arguments.trainers))


def numbers(option: str, text: str) -> tuple[int, ...]:
    """``1,8,64`` as numbers."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise SettingsError(f"{option} takes a comma-separated list of integers, got '{text}'") from None


def doctor(arguments: argparse.Namespace) -> int:
    """``ssmpi doctor``."""
    from ssmpi.tools import doctor as doc

    return doc.examine()


def evaluate(arguments: argparse.Namespace) -> int:
    """``ssmpi evaluate``."""
    from ssmpi.tools import score

    return score.evaluate(arguments.run, arguments.split, arguments.data)


def predict(arguments: argparse.Namespace) -> int:
    """``ssmpi predict``."""
    from ssmpi.tools import score

    source = score.ScoringInput(arguments.input, arguments.split, arguments.vocabulary)
    return score.predict(arguments.run, source, arguments.output)


def inspect(arguments: argparse.Namespace) -> int:
    """``ssmpi inspect``; 1 if something is damaged."""
    from ssmpi.tools import inspect as inspector

    text, well = inspector.describe(arguments.run, checksums=not arguments.no_checksums)
    print(text)
    return 0 if well else 1


def export(arguments: argparse.Namespace) -> int:
    """``ssmpi export``."""
    from ssmpi.tools import export as exporter

    return exporter.export(arguments.run, arguments.format, arguments.output)


def summary(arguments: argparse.Namespace) -> int:
    """``ssmpi summary``."""
    from ssmpi.report import table

    print(table(arguments.run, arguments.baseline, arguments.teacher))
    return 0


def report(arguments: argparse.Namespace) -> int:
    """``ssmpi report``."""
    from ssmpi.report import write

    print("\n".join(map(str, write(arguments.runs, arguments.out))))
    return 0


def bench_scale(arguments: argparse.Namespace) -> int:
    """``ssmpi bench scale``."""
    from ssmpi.bench import scale

    scale.measure(scale.counts_of(arguments.ranks), arguments.folder)
    return 0


def bench_throughput(arguments: argparse.Namespace) -> int:
    """``ssmpi bench throughput``."""
    from ssmpi.bench.throughput import throughput

    words = arguments.overrides
    run_file = Path(words.pop(0)) if words and "=" not in words[0] else None
    batches = numbers("--batch", arguments.batch)
    options = throughput.Options(arguments.folder, arguments.rounds, arguments.seconds, batches, arguments.only)
    throughput.measure(throughput.short(options) if arguments.short else options, run_file, words)
    return 0


def bench_cluster(arguments: argparse.Namespace) -> int:
    """``ssmpi bench cluster``."""
    from ssmpi.bench.cluster import cluster

    words = arguments.overrides
    run_file = Path(words.pop(0)) if words and "=" not in words[0] else None
    options = cluster.Options(
        folder=arguments.folder,
        trainers=numbers("--trainers", arguments.trainers),
        step_ms=arguments.step_ms,
        link_mb=arguments.link_mb,
        embedding_link_mb=arguments.embedding_link_mb,
        seconds=arguments.seconds,
        only=arguments.only,
        virtual_hosts=arguments.virtual_hosts,
    )
    cluster.measure(options, run_file, words)
    return 0


def bench_study(arguments: argparse.Namespace) -> int:
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


def bench_lockstep(arguments: argparse.Namespace) -> int:
    """``ssmpi bench lockstep``."""
    from ssmpi.bench.lockstep import lockstep
    from ssmpi.bench.lockstep.run import Lockstep
    from ssmpi.config import load

    log.configure("lockstep", verbose=True)
    seed = arguments.seed
    given = Lockstep(arguments.gap, arguments.staleness, seed, seed, seed, arguments.interleaving)
    vary = [name for name in arguments.vary.split(",") if name]
    lockstep.measure(load(arguments.run_file, arguments.overrides), given, vary, arguments.runs, arguments.out)
    return 0
