"""What each command does with its parsed arguments: call the module that does the work, print its result, and return
the exit code. That module is imported in the function, because MPI, torch and the like take seconds to import.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.bench import options
from ssmpi.bench.options import taken
from ssmpi.runtime.errors import STOPPED, SettingsError, TopologyError
from ssmpi.runtime.files import log
from ssmpi.runtime.host import launcher_env
from ssmpi.runtime.host.clock import process_age
from ssmpi.runtime.host.mpi_environment import make_segments_folder
from ssmpi.runtime.host.startup import without_garbage_collection
from ssmpi.runtime.mpi import signals
from ssmpi.runtime.mpi.starting import StartWatch
from ssmpi.runtime.settings import SECONDS, positive
from ssmpi.state.recovery.policy import INPUTS

UNKNOWN_SAVE = 0.05  # share of the time that a save may take before one was measured

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.embedding.placement import Placement
    from ssmpi.state.request import RunRequest


def train(arguments: argparse.Namespace) -> int:
    """``ssmpi train``, on every rank."""
    signals.listen()
    watch = StartWatch()
    make_segments_folder()
    starting = contextlib.ExitStack()
    starting.enter_context(without_garbage_collection())
    from ssmpi.runtime.mpi.world import joined

    log.set_terminal(arguments.terminal)
    with joined(watch) as job, contextlib.ExitStack() as held:
        from ssmpi import train as story
        from ssmpi.state import resume
        from ssmpi.state.recovery import restart  # in the job, so that an error here is printed once
        from ssmpi.tools.report import plot

        log.configure(job.who, verbose=job.rank == 0)
        start = job.agree(lambda: resume.prepare(requested(arguments), job.size, held))
        path = start.config.run.path
        if arguments.max_hours and job.rank == 0:
            seconds, budget = 3600 * arguments.max_hours, start.config.checkpoint.stop_budget_seconds
            signals.stop_within(signals.TIME_USED * seconds - process_age(), min(budget, UNKNOWN_SAVE * seconds))
        if start.finished:
            resume.check_model(job, path)
            if job.rank == 0:
                print(f"{path}: this run is finished; 'ssmpi summary {path}' shows its result")
            job.leave()
            return 0
        begun = restart.begin(job, start, requested(arguments).supervised)
        starting.close()
        finished = story.run(job, start.config, begun)
        if job.rank == 0 and finished:  # a stop must be quick
            try:
                plot(path)
            except OSError as error:  # the run is complete without it
                log.log.error(f"error: no plot: {error}")
        if job.rank == 0 and not finished and signals.out_of_time():
            log.log.info(f"stopped in time for --max-hours {arguments.max_hours:.3g}")
        stopped = job.leave(stopped=not finished)  # last: launchers kill the others once one rank exits
        signals.ignore_stops()
        job.finalize()
        begun.memory.remove()  # with its folder, which also held MPI's segments
    return STOPPED if stopped else 0


def requested(arguments: argparse.Namespace) -> RunRequest:
    """The run that ``train`` or ``launch`` was asked for."""
    from ssmpi.state.recovery.start import Supervised
    from ssmpi.state.request import RunRequest

    run_file, overrides = arguments.run_file, overrides_of(arguments)
    if arguments.resume and run_file and "=" in str(run_file):  # with --resume the run file may be left out
        run_file, overrides = None, [str(run_file), *overrides]
    if not run_file and not arguments.resume:
        raise SettingsError("name a run file, or --resume RUN")
    if arguments.checkpoint and not arguments.resume:
        raise SettingsError("--checkpoint requires --resume RUN")
    if arguments.overwrite and arguments.resume:
        raise SettingsError("--overwrite starts over and --resume continues: leave one of them out")
    word = getattr(arguments, "supervised", None)  # 'launch' has no such option
    if arguments.max_hours is not None:
        positive("--max-hours", arguments.max_hours, SECONDS / 3600)
    how = arguments.overwrite, arguments.resume, arguments.checkpoint, Supervised.parse(word) if word else None
    return RunRequest(run_file, overrides, *how, max_hours=arguments.max_hours)


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    """The settings on the command line, with the option that is short for one; SettingsError if both are given."""
    found, parent = list(arguments.overrides), arguments.continue_from
    if parent is None:
        return found
    if any(word.startswith("run.continue_from") for word in found):
        raise SettingsError("--continue-from is short for run.continue_from=...: leave one of them out")
    return [*found, f"run.continue_from={json.dumps(str(parent))}"]


def launch(arguments: argparse.Namespace) -> int:
    """``ssmpi launch``; it takes signals itself once it starts ranks."""
    try:
        from ssmpi.cluster import launch as launcher

        asked, ignore_memory = requested(arguments), arguments.ignore_memory
        return launcher.launch(asked, arguments.site, arguments.dry_run, ignore_memory=ignore_memory)
    except KeyboardInterrupt:
        print("interrupted before the ranks were started: no run has begun or changed", file=sys.stderr)
        raise


def submit(arguments: argparse.Namespace) -> int:
    """``ssmpi submit``."""
    from ssmpi.cluster import submit as submitter
    from ssmpi.config import load

    return submitter.submit(load(arguments.run_file, overrides_of(arguments)), arguments.site, arguments.dry_run)


def plan(arguments: argparse.Namespace) -> int:
    """``ssmpi plan``; without a site file, TopologyError after it if all ranks do not fit on this host."""
    from ssmpi.cluster import site
    from ssmpi.config import load
    from ssmpi.data.schema import read_manifest
    from ssmpi.runtime.files.run_files import is_run_folder
    from ssmpi.runtime.host.host_memory import memory_limit
    from ssmpi.state.requirements import check_storage, misfit, placement_of, splits_to_score, this_host
    from ssmpi.tools import plan as planner
    from ssmpi.tools import recovery_plan

    inputs = recovery_inputs(arguments)
    where = site.load(arguments.site) if arguments.site else None
    config = load(arguments.run_file, arguments.overrides, to_train=not is_run_folder(arguments.run_file.parent))
    if not arguments.tables:
        splits_to_score(config, read_manifest(Path(config.data.folder)))
    sections = [planner.describe(config, where, arguments.tables)]
    placement = placement_of(config, arguments.tables)
    features = planner.features_of(config, placement, known=not arguments.tables)
    config = config.over(features)  # the size of a row follows from the network
    if arguments.step_ms is not None or arguments.link_mb is not None:
        sections.append(speed(config, placement, arguments))
    if arguments.recovery:
        sections.append(recovery_plan.describe(config, inputs, placement))
    print("\n\n".join(sections), flush=True)
    if where:
        return 0
    check_storage(config, placement)
    if why := misfit(config, placement, memory_limit()):
        raise TopologyError(why)
    needed = this_host(config, placement).need / 1e9
    print(
        f"\nall ranks together need {needed:,.1f} GB of memory, and this host has {memory_limit() / 1e9:,.1f}: they fit"
    )
    return 0


def settings(arguments: argparse.Namespace) -> int:
    """``ssmpi settings``."""
    from ssmpi.tools import settings_text

    print(settings_text.describe(arguments.word))
    return 0


def recovery_inputs(arguments: argparse.Namespace) -> dict[str, float]:
    """The inputs that were given to ``--recovery``, by their names."""
    given = given_inputs(arguments)
    if given and not arguments.recovery:
        raise SettingsError(f"{INPUTS[next(iter(given))].option} is an input of --recovery: add that")
    return given


def given_inputs(arguments: argparse.Namespace) -> dict[str, float]:
    """The inputs of the recovery policy that were given, by their names."""
    return {name: value for name in INPUTS if (value := getattr(arguments, name)) is not None}


def speed(config: Config, placement: Placement, arguments: argparse.Namespace) -> str:
    """What ``--step-ms`` and ``--link-mb`` add to a plan."""
    from ssmpi.tools.bottleneck import LinkSpeeds, estimate

    if arguments.step_ms is None or arguments.link_mb is None:
        raise SettingsError("--step-ms ('ssmpi bench throughput' measures it) and --link-mb belong together: give both")
    link = 1e6 * arguments.link_mb
    return estimate(config, placement, arguments.step_ms / 1e3, LinkSpeeds(link, link, link)).describe()


def doctor(arguments: argparse.Namespace) -> int:
    """``ssmpi doctor``; 1 if something needs attention."""
    if arguments.run and (arguments.clean or (launcher_env.ranks() or 1) > 1):
        raise SettingsError(f"'ssmpi doctor {arguments.run}' runs in one process, without mpirun and without --clean")
    if arguments.run:
        from ssmpi.tools import diagnosis

        page, well = diagnosis.describe(arguments.run)
        print(page)
        return 0 if well else 1
    if arguments.clean:
        from ssmpi.tools import clean

        return clean.clean(arguments.clean)
    from ssmpi.tools import doctor as doc

    return doc.examine()


def evaluate(arguments: argparse.Namespace) -> int:
    """``ssmpi evaluate``."""
    from ssmpi.tools import score

    return score.evaluate(arguments.run, arguments.split, arguments.data)


def predict(arguments: argparse.Namespace) -> int:
    """``ssmpi predict``."""
    from ssmpi.tools import score

    source = score.ScoringInput(arguments.input, arguments.split, arguments.vocabulary, arguments.schema)
    return score.predict(arguments.run, source, arguments.output)


def inspect(arguments: argparse.Namespace) -> int:
    """``ssmpi inspect``; 2 if something is damaged."""
    from ssmpi.tools import inspect as inspector

    text, well = inspector.describe(arguments.run, checksums=not arguments.no_checksums)
    print(text)
    return 0 if well else 2


def export(arguments: argparse.Namespace) -> int:
    """``ssmpi export``."""
    from ssmpi.tools import delta
    from ssmpi.tools import export as exporter

    if arguments.since is None:
        return exporter.export(arguments.run, arguments.format or "torch", arguments.output)
    if arguments.format not in (None, "safetensors"):
        raise SettingsError(f"--since writes safetensors: leave --format {arguments.format} out")
    return delta.export_since(arguments.run, arguments.since, arguments.output)


def apply(arguments: argparse.Namespace) -> int:
    """``ssmpi apply``."""
    from ssmpi.tools import delta

    return delta.apply(arguments.base, arguments.deltas, arguments.output)


def summary(arguments: argparse.Namespace) -> int:
    """``ssmpi summary``; 1 if a metric is worse than expected."""
    from ssmpi.tools.report import course, table

    print(table(arguments.run, arguments.baseline, arguments.teacher))
    if not arguments.expect:
        return 0
    text, on_course = course(arguments.run, arguments.expect)
    print(text)
    return 0 if on_course else 1


def report(arguments: argparse.Namespace) -> int:
    """``ssmpi report``; 2 if a run has nothing to show, after a page with the others."""
    from ssmpi.runtime.mpi.failure import say
    from ssmpi.tools.report import read, scored_unlike, write

    runs: dict[str, Path] = {}
    for run in arguments.runs:  # one run by two paths is no second one
        runs.setdefault(os.path.realpath(run), run)
    records = [read(run) for run in runs.values()]
    for record in records:
        for sentence in record.missing:
            say(f"{'error' if record.is_empty else 'warning'}: {record.folder}: {sentence}")
    if unlike := scored_unlike(records):
        say(f"warning: {unlike}")
    print("\n".join(map(str, write(records, arguments.output))))
    return 2 if any(record.is_empty for record in records) else 0


def run_file_of(words: list[str]) -> Path | None:
    """Separate the run file, which may come before the overrides, from a command's words."""
    return Path(words.pop(0)) if words and "=" not in words[0] else None


def bench_throughput(arguments: argparse.Namespace) -> int:
    """``ssmpi bench throughput``."""
    from ssmpi.bench import throughput as bench

    given = taken(options.ThroughputOptions, arguments)
    if given.names:
        print("\n".join(bench.names(given)))
    else:
        bench.measure(given, run_file_of(arguments.overrides), arguments.overrides)
    return 0


def bench_compression(arguments: argparse.Namespace) -> int:
    """``ssmpi bench compression``."""
    from ssmpi.bench import compression as bench

    bench.measure(taken(options.CompressionOptions, arguments))
    return 0


def bench_prepare(arguments: argparse.Namespace) -> int:
    """``ssmpi bench prepare``."""
    from ssmpi.bench import preparation as bench

    bench.measure(taken(options.PrepareOptions, arguments))
    return 0


def bench_tables(arguments: argparse.Namespace) -> int:
    """``ssmpi bench tables``."""
    from ssmpi.bench import tables as bench

    bench.measure(taken(options.TablesOptions, arguments))
    return 0
