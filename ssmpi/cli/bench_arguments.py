"""The arguments of ``ssmpi bench`` and its kinds."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.cli import bench
from ssmpi.cli.recovery_arguments import add_recovery_emulation
from ssmpi.cli.subcommand import add, add_overrides, add_run_file

if TYPE_CHECKING:
    from ssmpi.cli.subcommand import Commands


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
        "how algorithms scale with trainers, with dense steps and links emulated on this host",
    )
    add_cluster_options(sub)
    text = "repeat a run in one process, without MPI and races, and vary its seeds one by one"
    add_lockstep_options(add(kinds, "lockstep", bench.lockstep, text))
    text = "in lockstep: tune, then test by pairs of seeds whether shadow and foreground come to the same quality"
    add_equivalence_options(add(kinds, "equivalence", bench.equivalence, text))
    text = "what codecs cost and save: nanoseconds and bytes per entry"
    add_compression_options(add(kinds, "compression", bench.compression, text))
    text = "what losses of embedding PSs cost and do to quality, by strategy of saving, emulated in one process"
    add_recovery_emulation(add(kinds, "recovery", bench.recovery, text))
    sub = add(kinds, "scale", bench.scale, "the cost of starting and ending a job of many ranks on this host")
    sub.add_argument("--ranks", default="8,32", metavar="NUMBERS", help="ranks of the jobs (default: 8,32)")
    text = "then kill a rank this many times, and print how long it takes to resume training (default: 5)"
    sub.add_argument("--kills", type=int, default=5, metavar="N", help=text)
    sub.add_argument(
        "--folder",
        type=Path,
        default=Path("runs/bench"),
        help="where results and synthetic data go (default: runs/bench)",
    )


def add_bench_options(sub: argparse.ArgumentParser) -> None:
    """What ``ssmpi bench throughput`` takes."""
    add_overrides(sub, "data and model (default: synthetic Criteo, Kaggle DLRM)", run_file=True)
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
    sub.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="contenders and sections whose name contains this; * matches anything, a|b is either",
    )
    shares = "values of sync.cpu_share for the section shadow, 0 for the shipped one (default: 0,1)"
    sub.add_argument("--shares", default="0,1", metavar="SHARES", help=shares)
    sub.add_argument("--short", action="store_true", help="batch 128, one round, few contenders: a smoke test")


def add_compression_options(sub: argparse.ArgumentParser) -> None:
    """What ``ssmpi bench compression`` takes."""
    known = "dense,bf16,threshold:0.95,threshold:0.99,threshold:0.99:bf16,random-k:0.99"
    sub.add_argument("--codecs", default=known, metavar="CODECS", help=f"codecs, see sync.codec (default: {known})")
    sub.add_argument(
        "--entries", type=int, default=1_000_000, metavar="N", help="entries of the vector (default: 1,000,000)"
    )
    sub.add_argument("--rounds", type=int, default=15, metavar="N", help="turns of all codecs (default: 15)")
    sub.add_argument("--out", type=Path, help="JSON file with all results")


def add_cluster_options(sub: argparse.ArgumentParser) -> None:
    """What ``ssmpi bench cluster`` takes."""
    add_overrides(sub, "a run file for its data, settings for all jobs", run_file=True)
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
        "--only",
        default="",
        metavar="PATTERN",
        help="contenders whose name contains this; * matches anything, a|b is either",
    )


def add_study_options(sub: argparse.ArgumentParser) -> None:
    """What ``ssmpi bench study`` takes."""
    sub.add_argument("study_file", type=Path, help="TOML file with axes of settings; see jobs/studies")
    add_overrides(sub, "settings that override the study file")
    mode = sub.add_mutually_exclusive_group()
    mode.add_argument("--list", action="store_true", help="print the cells with their numbers and states, run nothing")
    mode.add_argument("--cell", type=int, metavar="K", help="run cell K only (for array jobs), make no table")
    mode.add_argument("--table", action="store_true", help="make the table of the finished cells, run nothing")


def add_lockstep_options(sub: argparse.ArgumentParser) -> None:
    """What ``ssmpi bench lockstep`` takes."""
    add_run_file(sub)
    sub.add_argument("--gap", type=float, default=20.0, metavar="N", help="iterations between rounds (default: 20)")
    sub.add_argument(
        "--staleness", type=int, default=0, metavar="N", help="iterations between snapshot and merge (default: 0)"
    )
    sub.add_argument(
        "--steps", type=int, default=0, metavar="N", help="end after so many iterations (default: 0, with the data)"
    )
    sub.add_argument(
        "--seed", type=int, default=1, help="the first, of initial values and of the order of rows (default: 1)"
    )
    sub.add_argument(
        "--interleaving",
        type=int,
        default=0,
        metavar="SEED",
        help="shuffle the order of steps (default: 0, no shuffling)",
    )
    sub.add_argument(
        "--vary",
        default="dense,embedding,order",
        metavar="SEEDS",
        help="seeds to vary: dense, embedding, order, interleaving (default: the first 3)",
    )
    sub.add_argument(
        "--no-feedback", action="store_true", help="discard what a codec does not send: the control for error feedback"
    )
    sub.add_argument(
        "--case",
        action="append",
        metavar="SETTINGS",
        help="compare with these settings too, by pairs of seeds; also 'gap=N', 'feedback=off' (repeatable)",
    )
    sub.add_argument("--runs", type=int, default=1, metavar="N", help="runs, each with the next seed (default: 1)")
    sub.add_argument("--out", type=Path, help="JSON file with all results")


def add_equivalence_options(sub: argparse.ArgumentParser) -> None:
    """What ``ssmpi bench equivalence`` takes."""
    sub.add_argument("study_file", type=Path, help="TOML file; see jobs/studies/lockstep")
    add_overrides(sub, "settings that override the study file")
    text = "start no run after this many minutes, 0 only prints; the same command continues (default: to the end)"
    sub.add_argument("--minutes", type=float, default=math.inf, metavar="N", help=text)
    sub.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at the same time, a core each (default: 1)")
    text = "run nothing; print the results of the trials recorded in FILE, such as the published *-trials.jsonl"
    sub.add_argument("--trials", type=Path, metavar="FILE", help=text)
