"""The inputs of ``ssmpi plan --recovery`` and ``python -m jobs.lab recovery``."""

from __future__ import annotations

import argparse

from ssmpi.state.recovery.inputs import INPUTS


def add_recovery_plan(sub: argparse.ArgumentParser) -> None:
    """``--recovery`` and its inputs, which ``--predict`` takes too."""
    text = "print what full and partial recovery of a lost embedding PS would cost, each figure with its formula"
    sub.add_argument("--recovery", action="store_true", help=text)
    add_inputs(
        sub,
        "inputs of --recovery, and of --predict for overheads (defaults follow from table sizes, or are an example's)",
    )


def add_inputs(sub: argparse.ArgumentParser, title: str) -> None:
    """The inputs of the policy."""
    group = sub.add_argument_group(title)
    for name, known in INPUTS.items():
        unit = known.option.rpartition("-")[2].upper()
        group.add_argument(known.option, dest=name, type=float, metavar=unit, help=f"{known.symbol}, {known.meaning}")
