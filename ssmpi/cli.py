"""The command line: parse, call, print. ``ssmpi`` and ``python -m ssmpi`` are the same."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssmpi import __version__, launched, log
from ssmpi.comm import failure, signals
from ssmpi.errors import STOPPED, SettingsError

if TYPE_CHECKING:
    from ssmpi.config import Config
    from ssmpi.request import Request


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code: 0 done, 1 failed, 2 for what the user can mend, 85 stopped on request."""
    parsed = parse(parser(), arguments)
    try:
        code = parsed.command(parsed)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        code = failure.last_words(error)
    sys.exit(code)


def parse(top: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse, with overrides before or after options; under a launcher only the first rank says what is wrong."""
    try:
        with contextlib.redirect_stderr(io.StringIO()) if launched.rank() else contextlib.nullcontext():
            return parse_overrides(top, arguments)
    except SystemExit:
        failure.let_the_first_speak()
        raise


def parse_overrides(top: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes positionals only in one run: collect the overrides that it leaves."""
    parsed, rest = top.parse_known_args(arguments)
    stray = [word for word in rest if word.startswith("-") or not hasattr(parsed, "overrides")]
    if stray:
        top.error(f"unrecognized arguments: {' '.join(stray)}")
    if rest:
        parsed.overrides += rest
    return parsed


def parser() -> argparse.ArgumentParser:
    """All commands with their arguments."""
    top = argparse.ArgumentParser(
        prog="ssmpi", description="Train click-through-rate models on CPU clusters under MPI."
    )
    top.add_argument("--version", action="version", version=f"ssmpi {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, command: Callable[[argparse.Namespace], int], text: str, among: Any = commands
    ) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = among.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.set_defaults(command=command)
        return sub

    def add_run_file(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("run_file", type=Path, help="TOML file of what differs from the defaults")
        sub.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings that override the file")

    def add_run(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("run_file", type=Path, nargs="?", help="TOML file of what differs from the defaults")
        sub.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings that override the file")
        sub.add_argument("--overwrite", action="store_true", help="replace an earlier run in the same run folder")
        sub.add_argument(
            "--resume", type=Path, metavar="RUN", help="go on with the run in this folder, or start it there"
        )
        sub.add_argument("--checkpoint", metavar="NAME", help="go on from this one, or from the newest that is 'whole'")

    sub = add("train", train, "train a model; start it with mpirun, or let 'ssmpi launch' do that")
    add_run(sub)
    sub.add_argument("--terminal", type=Path, help="terminal to draw the progress bar on, as 'ssmpi launch' says it")
    sub = add("launch", launch, "start mpirun with the right number of ranks and settings; Ctrl-C saves and stops")
    add_run(sub)
    sub.add_argument("--site", type=Path, help="site file: where the ranks go, how they are started (jobs/README.md)")
    sub.add_argument("--dry-run", action="store_true", help="print the command and its environment, start nothing")
    sub = add("submit", submit, "make the run folder with a batch file in it, and submit that")
    add_run_file(sub)
    sub.add_argument("--site", type=Path, required=True, help="site file: nodes, placement, launcher, queue")
    sub.add_argument("--dry-run", action="store_true", help="print who goes where and the batch file, make nothing")
    sub = add("plan", plan, "print ranks, placement, memory and traffic of a run, without MPI")
    add_run_file(sub)
    sub.add_argument("--site", type=Path, help="site file: say what each node needs, and refuse what cannot fit")
    sub.add_argument("--tables", type=Path, help="text file with the rows of each table, before data is prepared")
    sub.add_argument(
        "--predict", action="store_true", help="say how fast how many trainers would be, and what is full first"
    )
    sub.add_argument("--trainers", default="1,8,64,256", metavar="NUMBERS", help="to predict for (default: 1,8,64,256)")
    sub.add_argument(
        "--step-ms", type=float, metavar="MS", help="measured time of a thread's dense step, to predict from"
    )
    sub.add_argument(
        "--link-mb", type=float, metavar="MB", help="MB/s and direction of every rank's link, to predict from"
    )
    add("doctor", doctor, "print versions, MPI library, cores and over-subscription, and test them for a second")
    sub = add("evaluate", evaluate, "score a finished run's model on a split, in one process or under mpirun")
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("--split", default="test", help="split to score (default: test)")
    sub.add_argument("--data", type=Path, help="another prepared data folder than the run's, of the same vocabulary")
    sub = add("predict", predict, "write the scores of a raw Criteo file or a prepared split")
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("input", type=Path, help="raw file (labelled or not) or prepared data folder")
    sub.add_argument("--split", default="test", help="split of a prepared folder (default: test)")
    sub.add_argument("--vocabulary", type=Path, help="vocabulary for a raw file (default: the training data's)")
    sub.add_argument("--output", type=Path, required=True, help="text file, one probability a line")
    sub = add("inspect", inspect, "say how a run stands and what its checkpoints hold, and check every byte of them")
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("--no-checksums", action="store_true", help="do not read the files")
    sub = add("export", export, "write a run's model as one file, in the layout of facebookresearch/dlrm")
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("--format", choices=("torch", "safetensors"), default="torch", help="default: torch, a state_dict")
    sub.add_argument(
        "--output", type=Path, help="file to write (default: model.pt or model.safetensors in the run folder)"
    )
    sub = add("summary", summary, "print a run's result table, beside reference points if there are any")
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("--baseline", type=Path, help="JSON that 'ssmpi-prepare baseline' wrote")
    sub.add_argument("--teacher", type=Path, help="teacher.json that 'ssmpi-prepare synthesize' wrote")
    sub = add("report", report, "write an HTML page that compares runs: settings, curves, speed, time, final table")
    sub.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run folder; the others are compared with the first"
    )
    sub.add_argument("--out", type=Path, default=Path("report.html"), help="the page (default: report.html)")
    text = "measure this program beside what it could be and what others are"
    kinds = commands.add_parser("bench", help=text, description=text).add_subparsers(required=True, metavar="KIND")
    sub = add("throughput", bench_throughput, "examples per second of all contenders, in turns, and its targets", kinds)
    add_bench_options(sub)
    sub = add("study", bench_study, "run a grid of runs, each once, and make one table of them", kinds)
    add_study_options(sub)
    sub = add(
        "cluster",
        bench_cluster,
        "how algorithms scale with trainers, dense steps and links emulated on this host",
        kinds,
    )
    add_cluster_options(sub)
    sub = add("scale", bench_scale, "what it costs to start and to end a job of many ranks on this host", kinds)
    sub.add_argument("--ranks", default="8,32", metavar="NUMBERS", help="ranks of the jobs (default: 8,32)")
    sub.add_argument(
        "--folder", type=Path, default=Path("runs/bench"), help="where results and made data go (default: runs/bench)"
    )
    return top


def add_bench_options(sub: argparse.ArgumentParser) -> None:
    """What ``ssmpi bench throughput`` takes."""
    words = "[run.toml] [section.key=value ...]"
    sub.add_argument(
        "overrides", nargs="*", metavar=words, help="data and model (default: synthetic Criteo, Kaggle DLRM)"
    )
    sub.add_argument(
        "--folder", type=Path, default=Path("runs/bench"), help="where results and made data go (default: runs/bench)"
    )
    sub.add_argument("--rounds", type=int, default=2, metavar="N", help="visits to every contender (default: 2)")
    sub.add_argument(
        "--seconds", type=float, default=0.7, metavar="S", help="length of a window, 3 a visit (default: 0.7)"
    )
    sub.add_argument("--batch", default="128,512,2048", metavar="SIZES", help="batch sizes (default: 128,512,2048)")
    sub.add_argument(
        "--only", default="", metavar="PATTERN", help="contenders and sections whose name has this; * is anything"
    )
    sub.add_argument("--short", action="store_true", help="batch 128, one round, few contenders: to see that it works")


def add_cluster_options(sub: argparse.ArgumentParser) -> None:
    """What ``ssmpi bench cluster`` takes."""
    words = "[run.toml] [section.key=value ...]"
    sub.add_argument("overrides", nargs="*", metavar=words, help="a run file for its data, settings for all jobs")
    sub.add_argument(
        "--folder", type=Path, default=Path("runs/bench"), help="where results and made data go (default: runs/bench)"
    )
    sub.add_argument("--trainers", default="1,2,4,8,16", metavar="NUMBERS", help="of the jobs (default: 1,2,4,8,16)")
    sub.add_argument("--step-ms", type=float, default=50.0, metavar="MS", help="a dense step (default: 50)")
    sub.add_argument(
        "--link-mb", type=float, default=4.0, metavar="MB", help="MB/s and direction of a sync PS's link (default: 4)"
    )
    sub.add_argument(
        "--embedding-link-mb",
        type=float,
        default=2.0,
        metavar="MB",
        help="the same of a narrow embedding PS (default: 2)",
    )
    sub.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        metavar="S",
        help="length of a window, 3 a job after 2 that do not count (default: 2)",
    )
    sub.add_argument("--only", default="", metavar="PATTERN", help="contenders whose name has this; * is anything")


def add_study_options(sub: argparse.ArgumentParser) -> None:
    """What ``ssmpi bench study`` takes."""
    sub.add_argument("study_file", type=Path, help="TOML file with axes of settings; see jobs/studies")
    sub.add_argument("overrides", nargs="*", metavar="section.key=value", help="what overrides the study file")
    mode = sub.add_mutually_exclusive_group()
    mode.add_argument("--list", action="store_true", help="print the cells with their numbers and states, run nothing")
    mode.add_argument("--cell", type=int, metavar="K", help="run cell K only (for array jobs), make no table")
    mode.add_argument("--table", action="store_true", help="make the table of what is finished, run nothing")


def train(arguments: argparse.Namespace) -> int:
    """``ssmpi train``, on every rank."""
    signals.listen()
    from ssmpi.comm.world import joined

    log.draw_on(arguments.terminal)
    with joined() as job, contextlib.ExitStack() as held:
        from ssmpi import resume  # in the job, so that what goes wrong here is said once too
        from ssmpi import train as story
        from ssmpi.report import plot

        log.configure(job.who, talkative=job.rank == 0)
        start = job.agree(lambda: resume.prepare(requested(arguments), job.size, held))
        path = Path(start.config.run.folder)
        if start.finished:
            if job.rank == 0:
                print(f"{path}: this run is finished; 'ssmpi summary {path}' shows its result")
            job.leave()
            return 0
        finished = story.run(job, start.config, path, resume.choose(job, start))
        if job.rank == 0 and finished:  # who asked for a stop is in a hurry
            plot(path)
        stopped = job.leave(stopped=not finished)  # last: a launcher ends the others when a rank exits with a code
    return STOPPED if stopped else 0


def requested(arguments: argparse.Namespace) -> Request:
    """The run that ``train`` or ``launch`` was asked for."""
    from ssmpi.request import Request

    run_file, overrides = arguments.run_file, list(arguments.overrides)
    if arguments.resume and run_file and "=" in str(run_file):  # with --resume the run file may be left out
        run_file, overrides = None, [str(run_file), *overrides]
    if not run_file and not arguments.resume:
        raise SettingsError("name a run file, or --resume RUN")
    if arguments.checkpoint and not arguments.resume:
        raise SettingsError("--checkpoint names one of --resume RUN")
    return Request(run_file, overrides, arguments.overwrite, arguments.resume, arguments.checkpoint)


def launch(arguments: argparse.Namespace) -> int:
    """``ssmpi launch``."""
    from ssmpi import launch as launcher

    return launcher.launch(requested(arguments), arguments.site, arguments.dry_run)


def submit(arguments: argparse.Namespace) -> int:
    """``ssmpi submit``."""
    from ssmpi import submit as submitter
    from ssmpi.config import load

    return submitter.submit(load(arguments.run_file, arguments.overrides), arguments.site, arguments.dry_run)


def plan(arguments: argparse.Namespace) -> int:
    """``ssmpi plan``."""
    from ssmpi import plan as planner
    from ssmpi import site
    from ssmpi.config import load

    where = site.load(arguments.site) if arguments.site else None
    config = load(arguments.run_file, arguments.overrides)
    more = "\n\n" + predicted(config, arguments) if arguments.predict else ""
    print(planner.describe(config, where, arguments.tables) + more)
    return 0


def predicted(config: Config, arguments: argparse.Namespace) -> str:
    """What ``--predict`` adds to a plan."""
    from ssmpi import forecast

    if arguments.step_ms is None or arguments.link_mb is None:
        raise SettingsError("--predict needs --step-ms ('ssmpi bench throughput' measures it) and --link-mb")
    if arguments.tables:
        raise SettingsError("--predict counts the rows of batches of the data: prepare it, and leave out --tables")
    speed = 1e6 * arguments.link_mb
    links = forecast.Links(speed, speed, speed)
    return forecast.describe(config, arguments.step_ms / 1e3, links, numbers("--trainers", arguments.trainers))


def numbers(option: str, text: str) -> tuple[int, ...]:
    """``1,8,64`` as numbers."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise SettingsError(f"{option} takes numbers with commas between them, got '{text}'") from None


def doctor(arguments: argparse.Namespace) -> int:
    """``ssmpi doctor``."""
    from ssmpi import doctor as doc

    return doc.examine()


def evaluate(arguments: argparse.Namespace) -> int:
    """``ssmpi evaluate``."""
    from ssmpi import score

    return score.evaluate(arguments.run, arguments.split, arguments.data)


def predict(arguments: argparse.Namespace) -> int:
    """``ssmpi predict``."""
    from ssmpi import score

    source = score.Source(arguments.input, arguments.split, arguments.vocabulary)
    return score.predict(arguments.run, source, arguments.output)


def inspect(arguments: argparse.Namespace) -> int:
    """``ssmpi inspect``; 1 if something is damaged."""
    from ssmpi import inspect as inspector

    text, well = inspector.describe(arguments.run, checksums=not arguments.no_checksums)
    print(text)
    return 0 if well else 1


def export(arguments: argparse.Namespace) -> int:
    """``ssmpi export``."""
    from ssmpi import export as exporter

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
    from ssmpi.bench import throughput

    words = arguments.overrides
    run_file = Path(words.pop(0)) if words and "=" not in words[0] else None
    batches = numbers("--batch", arguments.batch)
    options = throughput.Options(arguments.folder, arguments.rounds, arguments.seconds, batches, arguments.only)
    throughput.measure(throughput.short(options) if arguments.short else options, run_file, words)
    return 0


def bench_cluster(arguments: argparse.Namespace) -> int:
    """``ssmpi bench cluster``."""
    from ssmpi.bench import cluster

    words = arguments.overrides
    run_file = Path(words.pop(0)) if words and "=" not in words[0] else None
    options = cluster.Options(
        arguments.folder, numbers("--trainers", arguments.trainers), arguments.step_ms, arguments.link_mb,
        arguments.embedding_link_mb, arguments.seconds, arguments.only,
    )  # fmt: skip
    cluster.measure(options, run_file, words)
    return 0


def bench_study(arguments: argparse.Namespace) -> int:
    """``ssmpi bench study``."""
    from ssmpi.bench import study as bench
    from ssmpi.bench.grid import load

    log.configure("study", talkative=True)
    grid = load(arguments.study_file, arguments.overrides)
    if arguments.list:
        print(bench.describe(grid))
        return 0
    if arguments.cell is not None:
        return bench.run_one(grid, arguments.cell)
    return bench.conclude(grid) if arguments.table else bench.run_all(grid)
