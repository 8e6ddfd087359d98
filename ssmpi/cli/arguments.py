"""The arguments of every command, and which function of ``commands`` each one is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi import __version__
from ssmpi.cli import bench, commands
from ssmpi.cli.recovery_arguments import add_recovery_emulation, add_recovery_plan
from ssmpi.core.run_files import REPORT

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
    add_scores(among)
    add_records(among)
    add_benchmarks(among)
    return top


def add(among: Commands, name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    """A command ``among`` others."""
    sub: argparse.ArgumentParser = among.add_parser(name, help=text, description=text, allow_abbrev=False)
    sub.set_defaults(command=command, parser=sub)
    return sub


def add_run_file(sub: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """A run file and overrides."""
    text = "TOML file of what differs from the defaults"
    sub.add_argument("run_file", type=Path, nargs="?" if optional else None, help=text)
    sub.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings that override the file")


def add_runs(among: Commands) -> None:
    """``train``, ``launch`` and ``submit``."""
    sub = add(among, "train", commands.train, "train a model; start it with mpirun, or let 'ssmpi launch' do that")
    add_run(sub)
    sub.add_argument("--terminal", type=Path, help="terminal to draw the progress bar on, set by 'ssmpi launch'")
    text = "start mpirun with the right number of ranks and settings; Ctrl-C saves and stops"
    sub = add(among, "launch", commands.launch, text)
    add_run(sub)
    sub.add_argument("--site", type=Path, help="site file: where the ranks go, how they are started (jobs/README.md)")
    sub.add_argument("--dry-run", action="store_true", help="print the command and its environment, start nothing")
    sub = add(among, "submit", commands.submit, "make the run folder with a batch file in it, and submit the file")
    add_run_file(sub)
    sub.add_argument("--site", type=Path, required=True, help="site file: nodes, placement, launcher, queue")
    sub.add_argument("--dry-run", action="store_true", help="print the layout and the batch file, write nothing")


def add_run(sub: argparse.ArgumentParser) -> None:
    """Which run, and whether to resume it."""
    add_run_file(sub, optional=True)
    sub.add_argument("--overwrite", action="store_true", help="replace an earlier run in the same run folder")
    sub.add_argument("--resume", type=Path, metavar="RUN", help="resume the run in this folder, or start it there")
    sub.add_argument(
        "--checkpoint", metavar="NAME", help="checkpoint to resume from; 'whole' picks the newest undamaged one"
    )


def add_plans(among: Commands) -> None:
    """``plan`` and ``doctor``."""
    sub = add(among, "plan", commands.plan, "print ranks, placement, memory and traffic of a run, without MPI")
    add_run_file(sub)
    sub.add_argument(
        "--site", type=Path, help="site file: print what each node needs, and refuse a run that cannot fit"
    )
    sub.add_argument("--tables", type=Path, help="text file with the rows of each table, before data is prepared")
    sub.add_argument(
        "--predict", action="store_true", help="predict speed by number of trainers, and the first bottleneck"
    )
    sub.add_argument("--trainers", default="1,8,64,256", metavar="NUMBERS", help="to predict for (default: 1,8,64,256)")
    sub.add_argument(
        "--step-ms", type=float, metavar="MS", help="measured time of a thread's dense step, to predict from"
    )
    sub.add_argument(
        "--link-mb", type=float, metavar="MB", help="bandwidth of every rank's link, per direction, to predict from"
    )
    add_recovery_plan(sub)
    text = "print versions, MPI library, cores and over-subscription, and test them for a second"
    add(among, "doctor", commands.doctor, text)


def add_scores(among: Commands) -> None:
    """``evaluate`` and ``predict``."""
    sub = add(
        among, "evaluate", commands.evaluate, "score a finished run's model on a split, in one process or under mpirun"
    )
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("--split", default="test", help="split to score (default: test)")
    sub.add_argument("--data", type=Path, help="another prepared data folder than the run's, of the same vocabulary")
    sub = add(among, "predict", commands.predict, "write the scores of a raw Criteo file or a prepared split")
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("input", type=Path, help="raw file (labelled or not) or prepared data folder")
    sub.add_argument("--split", default="test", help="split of a prepared folder (default: test)")
    sub.add_argument("--vocabulary", type=Path, help="vocabulary for a raw file (default: the training data's)")
    sub.add_argument("--output", type=Path, required=True, help="text file, one probability a line")


def add_records(among: Commands) -> None:
    """``inspect``, ``export``, ``summary`` and ``report``."""
    sub = add(
        among,
        "inspect",
        commands.inspect,
        "print the state of a run and of its checkpoints, and check every byte of them",
    )
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("--no-checksums", action="store_true", help="do not read the files")
    sub = add(
        among, "export", commands.export, "write a run's model as one file, in the layout of facebookresearch/dlrm"
    )
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("--format", choices=("torch", "safetensors"), default="torch", help="default: torch, a state_dict")
    sub.add_argument(
        "--output", type=Path, help="file to write (default: model.pt or model.safetensors in the run folder)"
    )
    text = "print a run's result table, beside reference points if there are any"
    sub = add(among, "summary", commands.summary, text)
    sub.add_argument("run", type=Path, help="run folder")
    sub.add_argument("--baseline", type=Path, help="JSON that 'ssmpi-prepare baseline' wrote")
    sub.add_argument("--teacher", type=Path, help="teacher.json that 'ssmpi-prepare synthesize' wrote")
    text = "write an HTML page that compares runs: settings, curves, speed, time, final table"
    sub = add(among, "report", commands.report, text)
    sub.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run folder; the others are compared with the first"
    )
    sub.add_argument("--out", type=Path, default=Path(REPORT), help=f"the page (default: {REPORT})")


def add_benchmarks(among: Commands) -> None:
    """``bench`` and its kinds."""
    text = "measure ssmpi, its upper bounds and other programs"
    kinds = among.add_parser("bench", help=text, description=text).add_subparsers(required=True, metavar="KIND")
    sub = add(
        kinds,
        "throughput",
        bench.throughput,
        "examples per second of all contenders, in turns, and its targets",
    )
    add_bench_options(sub)
    sub = add(kinds, "study", bench.study, "run a grid of runs, each once, and make one table of them")
    add_study_options(sub)
    sub = add(
        kinds,
        "cluster",
        bench.cluster,
        "how algorithms scale with trainers, dense steps and links emulated on this host",
    )
    add_cluster_options(sub)
    text = "what losses of embedding PSs cost and do to quality, by strategy of saving, emulated in one process"
    add_recovery_emulation(add(kinds, "recovery", bench.recovery, text))
    sub = add(kinds, "scale", bench.scale, "the cost of starting and ending a job of many ranks on this host")
    sub.add_argument("--ranks", default="8,32", metavar="NUMBERS", help="ranks of the jobs (default: 8,32)")
    sub.add_argument(
        "--folder",
        type=Path,
        default=Path("runs/bench"),
        help="where results and synthetic data go (default: runs/bench)",
    )


def add_bench_options(sub: argparse.ArgumentParser) -> None:
    """What ``ssmpi bench throughput`` takes."""
    words = "[run.toml] [section.key=value ...]"
    sub.add_argument(
        "overrides", nargs="*", metavar=words, help="data and model (default: synthetic Criteo, Kaggle DLRM)"
    )
    sub.add_argument(
        "--folder",
        type=Path,
        default=Path("runs/bench"),
        help="where results and synthetic data go (default: runs/bench)",
    )
    sub.add_argument("--rounds", type=int, default=2, metavar="N", help="visits to every contender (default: 2)")
    sub.add_argument(
        "--seconds", type=float, default=0.7, metavar="S", help="length of a window, 3 a visit (default: 0.7)"
    )
    sub.add_argument("--batch", default="128,512,2048", metavar="SIZES", help="batch sizes (default: 128,512,2048)")
    only = "contenders and sections whose name contains this; * matches anything"
    sub.add_argument("--only", default="", metavar="PATTERN", help=only)
    shares = "values of sync.cpu_share for the section shadow, 0 for the shipped one (default: 0,1)"
    sub.add_argument("--shares", default="0,1", metavar="SHARES", help=shares)
    sub.add_argument("--short", action="store_true", help="batch 128, one round, few contenders: a smoke test")


def add_cluster_options(sub: argparse.ArgumentParser) -> None:
    """What ``ssmpi bench cluster`` takes."""
    words = "[run.toml] [section.key=value ...]"
    sub.add_argument("overrides", nargs="*", metavar=words, help="a run file for its data, settings for all jobs")
    sub.add_argument(
        "--folder",
        type=Path,
        default=Path("runs/bench"),
        help="where results and synthetic data go (default: runs/bench)",
    )
    sub.add_argument("--trainers", default="1,2,4,8,16", metavar="NUMBERS", help="of the jobs (default: 1,2,4,8,16)")
    sub.add_argument("--step-ms", type=float, default=50.0, metavar="MS", help="a dense step (default: 50)")
    sub.add_argument(
        "--link-mb",
        type=float,
        default=4.0,
        metavar="MB",
        help="a sync PS's link, per direction (default: 4)",
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
        help="length of a window, 3 a job after 2 of warm-up (default: 2)",
    )
    sub.add_argument(
        "--virtual-hosts",
        action="store_true",
        help="each server on a virtual host whose link the kernel limits (root, Linux; jobs/cluster_on_hosts.sh)",
    )
    sub.add_argument(
        "--only", default="", metavar="PATTERN", help="contenders whose name contains this; * matches anything"
    )


def add_study_options(sub: argparse.ArgumentParser) -> None:
    """What ``ssmpi bench study`` takes."""
    sub.add_argument("study_file", type=Path, help="TOML file with axes of settings; see jobs/studies")
    sub.add_argument("overrides", nargs="*", metavar="section.key=value", help="what overrides the study file")
    mode = sub.add_mutually_exclusive_group()
    mode.add_argument("--list", action="store_true", help="print the cells with their numbers and states, run nothing")
    mode.add_argument("--cell", type=int, metavar="K", help="run cell K only (for array jobs), make no table")
    mode.add_argument("--table", action="store_true", help="make the table of the finished cells, run nothing")
