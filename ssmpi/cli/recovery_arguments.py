"""What ``ssmpi plan --recovery`` and ``ssmpi bench recovery`` take."""

from __future__ import annotations

import argparse
from pathlib import Path

from ssmpi.cli.subcommand import add_overrides
from ssmpi.recovery.inputs import INPUTS


def add_recovery_plan(sub: argparse.ArgumentParser) -> None:
    """``--recovery`` and its inputs, which ``--predict`` takes too."""
    text = "print what full and partial recovery of a lost embedding PS would cost, each figure with its formula"
    sub.add_argument("--recovery", action="store_true", help=text)
    _add_inputs(
        sub,
        "inputs of --recovery, and of --predict for overheads (defaults follow from table sizes, or are an example's)",
    )


def add_recovery_emulation(sub: argparse.ArgumentParser) -> None:
    """The options of ``ssmpi bench recovery``."""
    add_overrides(sub, "data and model (default: synthetic Criteo, Kaggle DLRM, 18 embedding PSs)", run_file=True)
    text = "where results and synthetic data go (default: runs/bench)"
    sub.add_argument("--folder", type=Path, default=Path("runs/bench"), help=text)
    text = "each sets initial values, order of the data and losses (default: 1,2)"
    sub.add_argument("--seeds", default="1,2", metavar="NUMBERS", help=text)
    sub.add_argument("--at-once", type=int, default=1, metavar="N", help="embedding PSs per loss (default: 1)")
    text = "shape of the gamma distribution of times between losses (default: 1, exponential)"
    sub.add_argument("--gamma-shape", type=float, default=1.0, metavar="K", help=text)
    text = "finished runs, a JSON object per line, which are not repeated (default: trials.jsonl in the folder)"
    sub.add_argument("--trials", type=Path, metavar="FILE", help=text)
    text = "strategies whose name contains this; * matches anything"
    sub.add_argument("--only", default="", metavar="PATTERN", help=text)
    sub.add_argument("--short", action="store_true", help="a small model on few rows: a smoke test")
    _add_inputs(sub, "the emulated job (defaults are an example's)")


def _add_inputs(sub: argparse.ArgumentParser, title: str) -> None:
    """The inputs of the policy."""
    group = sub.add_argument_group(title)
    for name, known in INPUTS.items():
        unit = known.option.rpartition("-")[2].upper()
        group.add_argument(known.option, dest=name, type=float, metavar=unit, help=f"{known.symbol}, {known.meaning}")
