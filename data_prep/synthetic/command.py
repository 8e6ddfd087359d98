"""``ssmpi-prepare synthesize`` on the command line: its options, and what it prints."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

from data_prep.raw.parser import SPARSE_FEATURES
from data_prep.synthetic.synthesize import TEACHER_NAME, SynthesisPlan, require, synthesize
from data_prep.synthetic.teacher import TeacherSettings, scaled_cardinalities
from data_prep.synthetic.text_writer import SCHEMA_NAME

SUFFIXES = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssmpi-prepare synthesize``."""
    add = parser.add_argument
    add("folder", type=Path, help="where to write; made if it is not there")
    add(
        "--rows",
        type=parse_rows,
        default=1_500_000,
        help="labelled rows in all, e.g. 1500000, 500k, 45.8M (default 1.5M)",
    )
    add("--days", type=int, default=0, help="write day_0 ... day_<N-1> instead of one train.txt")
    add(
        "--unlabelled-rows", type=parse_rows, default=0, help="also write test.txt: so many further rows without labels"
    )
    add("--gzip", action="store_true", help="compress, with .gz at the end of the names (about five times slower)")
    add("--seed", type=int, default=0, help="another seed is another teacher, other tokens and other rows (default 0)")
    add("--scale", type=float, default=0.01, help="distinct tokens as a share of the Kaggle set's (default 0.01)")
    add(
        "--cardinalities",
        type=parse_numbers,
        help="distinct tokens of C1 to C26, with commas, instead of --scale",
    )
    add(
        "--multi-hot",
        type=parse_numbers,
        default=(),
        metavar="N,N,...",
        help="write a table with lists of so many tokens of C1 to C26, the same ones for a token, and its schema.toml; "
        "MLPerf has 3,2,1,2,6,1,1,1,1,7,3,8,1,6,9,5,1,1,1,12,100,27,10,3,1,1",
    )
    add("--skew", type=float, default=1.05, help="Zipf's exponent of the token frequencies (default 1.05)")
    add(
        "--drift",
        type=float,
        default=0.0,
        help="0 to 1: how far base rate and token effects turn from first to last row",
    )
    add(
        "--turnover",
        type=float,
        default=0.0,
        help="how often each token goes, and a new one comes in its place, from first to last row (default 0)",
    )
    add("--overwrite", action="store_true", help="replace files that are there")


def run(arguments: argparse.Namespace) -> int:
    """Write the files, print what was written and the ceiling; returns the exit code 0, raises UserError."""
    scale = arguments.scale
    require(0 < scale <= 100 and math.isfinite(scale), f"--scale {scale:g}: must be above 0 and at most 100")
    settings = TeacherSettings(
        rows=arguments.rows,
        seed=arguments.seed,
        cardinalities=arguments.cardinalities or scaled_cardinalities(scale),
        skew=arguments.skew,
        drift=arguments.drift,
        turnover=arguments.turnover,
    )
    plan = SynthesisPlan(
        arguments.folder, settings, arguments.days, arguments.unlabelled_rows, arguments.gzip, arguments.overwrite,
        arguments.multi_hot,
    )  # fmt: skip
    began = time.monotonic()
    record = synthesize(plan)
    seconds = time.monotonic() - began
    files, rows = record["files"], sum(f["rows"] for f in record["files"])
    names = files[0]["file"] if len(files) == 1 else f"{files[0]['file']} ... {files[-1]['file']}"
    print(
        f"wrote {rows:,} rows, {sum(f['bytes'] for f in files) / 1e9:.2f} GB in {seconds:.1f} s: {plan.folder / names}"
    )
    print("the teacher's own scores, which a model can beat only by luck:")
    for name, part in {"all": record["overall"], **record["ranges"], **record.get("days", {})}.items():
        print(f"  {name:<10} {_scores(part)}")
    print(f"kept in {plan.folder / TEACHER_NAME}")
    if plan.multi_hot:
        print(f"prepare it with 'ssmpi-prepare table --schema {plan.folder / SCHEMA_NAME}'")
    return 0


def parse_rows(text: str) -> int:
    """``1500000``, ``1_500_000``, ``500k`` or ``1.5M`` as a number."""
    factor = SUFFIXES.get(text[-1:], 1)
    try:
        rows = int(text) if factor == 1 else float(text[:-1]) * factor
    except ValueError:
        rows = math.nan
    if not math.isfinite(rows) or rows != int(rows):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows; write for example 1500000, 500k or 1.5M")
    return int(rows)


def parse_numbers(text: str) -> tuple[int, ...]:
    """26 numbers with commas between them."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give {SPARSE_FEATURES} whole numbers with commas") from None


def _scores(part: dict[str, Any]) -> str:
    known = {name: f"{part[name]:.4f}" if part[name] is not None else "-" for name in ("auc", "log_loss", "ne")}
    rows, rate = part["rows"][1] - part["rows"][0], 100 * (part["label_rate"] or 0)
    return f"AUC {known['auc']}  log-loss {known['log_loss']}  NE {known['ne']}  ({rows:,} rows, {rate:.2f} % clicked)"
