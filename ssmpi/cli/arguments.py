"""The arguments of every command, and the function of ``commands`` that runs it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi import __version__
from ssmpi.bench import options
from ssmpi.bench.options import add_options
from ssmpi.cli import commands
from ssmpi.runtime.files.run_files import DELTA, EXPORTS, REPORT
from ssmpi.state.recovery.policy import INPUTS

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # has no public name


def parser() -> argparse.ArgumentParser:
    """All commands with their arguments."""
    top = argparse.ArgumentParser(
        prog="ssmpi", description="Train click-through-rate models on CPU clusters under MPI."
    )
    top.add_argument("--version", action="version", version=f"ssmpi {__version__}")
    among = top.add_subparsers(required=True, metavar="COMMAND")
    add_runs(among)
    add_plans(among)
    add_settings(among)
    add_scores(among)
    add_records(among)
    add_benchmarks(among)
    return top


def add_runs(among: Commands) -> None:
    """``train``, ``launch`` and ``submit``."""
    text = "train a model; start it with mpirun, or let 'ssmpi launch' do that"
    sub = add(among, "train", commands.train, text, ranks=True)
    add_run(sub)
    sub.add_argument("--terminal", type=Path, help="terminal to draw the progress bar on, set by 'ssmpi launch'")
    sub.add_argument("--supervised", help=argparse.SUPPRESS)  # as is this, see ``recovery.start.Supervised``
    text = "start the ranks with mpirun, or as a site file says, and restart them after a kill; Ctrl-C saves and stops"
    sub = add(among, "launch", commands.launch, text)
    add_run(sub)
    sub.add_argument("--site", type=Path, help="where ranks go and how they start (jobs/guide/cluster.md)")
    sub.add_argument("--dry-run", action="store_true", help="print the command and its environment, start nothing")
    text = "start even if 'ssmpi plan' finds that this host has too little memory"
    sub.add_argument("--ignore-memory", action="store_true", help=text)
    sub = add(among, "submit", commands.submit, "make the run folder with a batch file in it, and submit the file")
    add_run_file(sub)
    add_parent(sub)
    sub.add_argument("--site", type=Path, required=True, help="site file: nodes, placement, launcher, queue")
    sub.add_argument("--dry-run", action="store_true", help="print the layout and the batch file, write nothing")


def add_run(sub: argparse.ArgumentParser) -> None:
    """Which run, and whether to resume it."""
    add_run_file(sub, optional=True)
    sub.add_argument("--overwrite", action="store_true", help="replace an earlier run in the same run folder")
    sub.add_argument("--resume", type=Path, metavar="RUN", help="resume the run in this folder, or start it there")
    add_parent(sub)
    sub.add_argument(
        "--checkpoint", metavar="NAME", help="checkpoint to resume from; 'whole' picks the newest undamaged one"
    )
    text = "stop in time to be saved before H hours are over, restarts included; exit code 85"
    sub.add_argument("--max-hours", type=float, metavar="H", help=text)


def add_parent(sub: argparse.ArgumentParser) -> None:
    """The run to continue."""
    text = "start from the model and optimizer state of this finished run; short for run.continue_from=RUN"
    sub.add_argument("--continue-from", type=Path, metavar="RUN", help=text)


def add_plans(among: Commands) -> None:
    """``plan`` and ``doctor``."""
    sub = add(among, "plan", commands.plan, "print ranks, placement, memory and traffic of a run, without MPI")
    add_run_file(sub)
    sub.add_argument("--site", type=Path, help="site file: print what each node needs, refuse a run that cannot fit")
    sub.add_argument("--tables", type=Path, help="text file with the rows of each table, before data is prepared")
    text = (
        "time of a thread's step, from 'ssmpi bench throughput': with --link-mb, print the speed limits and the slowest"
    )
    sub.add_argument("--step-ms", type=float, metavar="MS", help=text)
    text = "with --step-ms: bandwidth of every rank's link, per direction, in MB/s"
    sub.add_argument("--link-mb", type=float, metavar="MB", help=text)
    text = "print the costs of full and partial recovery of a lost embedding PS, each figure with its formula"
    sub.add_argument("--recovery", action="store_true", help=text)
    add_inputs(sub, "inputs of --recovery (defaults follow from table sizes or come from an example)")
    text = (
        "print versions, MPI library, cores and over-subscription, and run a one-second test; of a run, print which "
        "rank is silent or slow, what bounds its speed, memory, restarts and where threads are. Exit code 1: something "
        "needs attention"
    )
    sub = add(among, "doctor", commands.doctor, text, ranks=True)
    sub.add_argument("run", type=Path, nargs="?", metavar="RUN", help="run folder, of a live or an ended job")
    text = "instead, remove memory, or rows, that ranks left in this folder (default: /dev/shm)"
    sub.add_argument("--clean", type=Path, nargs="?", const=Path("/dev/shm"), metavar="FOLDER", help=text)


def add_inputs(sub: argparse.ArgumentParser, title: str) -> None:
    """The inputs of the recovery policy."""
    group = sub.add_argument_group(title)
    for name, known in INPUTS.items():
        unit = known.option.rpartition("-")[2].upper()
        group.add_argument(known.option, dest=name, type=float, metavar=unit, help=f"{known.symbol}, {known.meaning}")


def add_settings(among: Commands) -> None:
    """``settings``."""
    sub = add(
        among,
        "settings",
        commands.settings,
        "print the settings of run files and site files with defaults and meanings",
    )
    sub.add_argument("word", nargs="?", help="a section, or a word in the name or meaning of settings (default: all)")


def add_scores(among: Commands) -> None:
    """``evaluate`` and ``predict``."""
    text = "score a run's model or newest checkpoint, in one process or on as many trainers and embedding PSs as it had"
    sub = add(among, "evaluate", commands.evaluate, text, ranks=True)
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("--split", default="test", help="split to score (default: test)")
    sub.add_argument("--data", type=Path, help="prepared data folder with the same vocabulary (default: the run's)")
    sub = add(among, "predict", commands.predict, "write the scores of a raw file or a prepared split")
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("input", type=Path, help="raw file (labelled or not) or prepared data folder")
    text = "schema of a raw table, the one that the training data was prepared with (default: Criteo's)"
    sub.add_argument("--schema", type=Path, help=text)
    sub.add_argument("--split", default="test", help="split of a prepared folder (default: test)")
    sub.add_argument("--vocabulary", type=Path, help="vocabulary for a raw file (default: the training data's)")
    sub.add_argument("--output", type=Path, required=True, help="text file, one probability a line")


def add_records(among: Commands) -> None:
    """``inspect``, ``export``, ``apply``, ``summary`` and ``report``."""
    sub = add(
        among,
        "inspect",
        commands.inspect,
        "print the state of a run and of its checkpoints, and check every byte of them",
    )
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("--no-checksums", action="store_true", help="do not read the files")
    text = (
        "write a run's model for other programs: as tensors, for a DLRM named as in facebookresearch/dlrm, or as ONNX"
    )
    sub = add(among, "export", commands.export, text)
    sub.add_argument("run", type=Path, help="run folder")
    text = "torch (default), a state_dict; safetensors; onnx: the network, with the tables as safetensors beside it"
    sub.add_argument("--format", choices=tuple(EXPORTS), help=text)
    text = "write only the changes since this checkpoint, model or run, as safetensors; see 'ssmpi apply'"
    sub.add_argument("--since", metavar="CHECKPOINT", help=text)
    text = f"file to write (default: {', '.join(EXPORTS.values())}, {DELTA} in the run folder)"
    sub.add_argument("--output", type=Path, help=text)
    text = "apply deltas from 'ssmpi export --since' to the export of the earlier model"
    sub = add(among, "apply", commands.apply, text)
    sub.add_argument("base", type=Path, help="safetensors of a whole model")
    sub.add_argument(
        "deltas", type=Path, nargs="+", metavar="DELTA", help="files from 'ssmpi export --since', oldest first"
    )
    sub.add_argument("--output", type=Path, required=True, help="file to write: the whole model after the last delta")
    text = "print a run's result table, beside reference points if there are any"
    sub = add(among, "summary", commands.summary, text)
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("--baseline", type=Path, help="JSON file from 'ssmpi-prepare baseline'")
    sub.add_argument("--teacher", type=Path, help="teacher.json from 'ssmpi-prepare synthesize'")
    text = "TOML file of the metric expected after each pass (jobs/configs/*.expect.toml); exit code 1 if one is worse"
    sub.add_argument("--expect", type=Path, metavar="FILE", help=text)
    text = "write an HTML page that compares runs: settings, curves, speed, time, final table"
    sub = add(among, "report", commands.report, text)
    sub.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders; the first is the reference")
    sub.add_argument("--output", "--out", type=Path, default=Path(REPORT), help=f"the page (default: {REPORT})")


def add_benchmarks(among: Commands) -> None:
    """``bench`` and its kinds."""
    text = "measure ssmpi, its upper bounds and other programs"
    kinds = among.add_parser("bench", help=text, description=text).add_subparsers(required=True, metavar="KIND")
    text = "examples per second of all contenders, in turns, and where time goes"
    sub = add(kinds, "throughput", commands.bench_throughput, text)
    add_overrides(sub, "data and model (default: synthetic Criteo, Kaggle DLRM)", run_file=True)
    add_options(sub, options.ThroughputOptions)
    text = "cost and size of codecs: nanoseconds and bytes per entry"
    add_options(add(kinds, "compression", commands.bench_compression, text), options.CompressionOptions)
    text = "rows per core-second of ssmpi-prepare: criteo, table with CSV and Parquet"
    add_options(add(kinds, "prepare", commands.bench_prepare, text), options.PrepareOptions)
    text = "dynamic tables beside static ones of the same rows: nanoseconds per id of pulls and pushes"
    add_options(add(kinds, "tables", commands.bench_tables, text), options.TablesOptions)


def add(
    among: Commands, name: str, command: Callable[[argparse.Namespace], int], text: str, *, ranks: bool = False
) -> argparse.ArgumentParser:
    """A command ``among`` others; ``ranks`` if it may be started under mpirun, as several processes."""
    sub: argparse.ArgumentParser = among.add_parser(name, help=text, description=text, allow_abbrev=False)
    sub.set_defaults(command=command, parser=sub, ranks=ranks)
    return sub


def add_run_file(sub: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """A run file and overrides."""
    text = "TOML file with settings that differ from the defaults"
    sub.add_argument("run_file", type=Path, nargs="?" if optional else None, help=text)
    add_overrides(sub, "settings that override the file")


def add_overrides(sub: argparse.ArgumentParser, text: str, *, run_file: bool = False) -> None:
    """Settings, all optional; with ``run_file`` the first word may be a run file."""
    words = f"{'[run.toml] ' * run_file}section.key=value"
    sub.add_argument("overrides", nargs="*", default=(), metavar=words, help=text)
