"""``ssmpi-prepare synthesize``: raw Criteo-format text of any size to try everything with, drawn from a teacher.

The real sets are large and under licence. These files have every quirk of theirs, and the best possible score on them
is known: it is printed and stored in ``teacher.json``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from data_prep.progress import Progress
from data_prep.ranks import Ranks
from data_prep.shards.splits import split_rows
from data_prep.synthetic.ceiling import Ceiling
from data_prep.synthetic.teacher import Teacher, TeacherSettings, scaled_cardinalities
from data_prep.synthetic.text_writer import TextWriter
from ssmpi.core.errors import UserError
from ssmpi.data.schema import SPARSE_FEATURES

TEACHER_NAME = "teacher.json"
BLOCK_ROWS = 16_384
GZIP_LEVEL = 1
SUFFIXES = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}


@dataclass(frozen=True)
class Plan:
    """What to write. Rows are spread evenly over ``days`` files, the first ones taking the remainder; 0: train.txt."""

    folder: Path
    teacher: TeacherSettings
    days: int = 0
    unlabelled_rows: int = 0
    gzipped: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        t = self.teacher
        _require(t.rows >= 1, f"--rows {t.rows}: ask for at least one row")
        _require(self.days >= 0, f"--days {self.days}: give a number of files, or 0 for one train.txt")
        _require(
            self.days != 1, "--days 1: the last day is kept for validation and test; give 0 for one train.txt, or 2"
        )
        _require(
            t.rows >= self.days, f"--days {self.days}: more files than the {t.rows:,} rows of --rows; ask for fewer"
        )
        _require(self.unlabelled_rows >= 0, f"--unlabelled-rows {self.unlabelled_rows}: must not be negative")
        _require(0 <= t.seed < 2**63, f"--seed {t.seed}: must be between 0 and 2^63 - 1")
        _require(0 <= t.drift <= 1, f"--drift {t.drift:g}: must be between 0 (none) and 1 (effects wholly replaced)")
        _require(0 <= t.skew <= 3, f"--skew {t.skew:g}: Zipf's exponent must be between 0 (uniform) and 3")
        count = len(t.cardinalities)
        _require(
            count == SPARSE_FEATURES, f"--cardinalities: {count} numbers, expected {SPARSE_FEATURES}, one per feature"
        )
        fits = all(1 <= c < 2**31 for c in t.cardinalities)
        _require(fits, "--cardinalities: every feature needs at least 1 and fewer than 2^31 distinct tokens")

    def files(self) -> dict[str, tuple[int, int]]:
        """The row range of each labelled file, in order; the unlabelled one's rows follow."""
        rows, end = self.teacher.rows, ".gz" if self.gzipped else ""
        if not self.days:
            return {f"train.txt{end}": (0, rows)}
        cuts = [day * (rows // self.days) + min(day, rows % self.days) for day in range(self.days + 1)]
        return {f"day_{day}{end}": (cuts[day], cuts[day + 1]) for day in range(self.days)}

    def unlabelled_file(self) -> str:
        """The name of the file without labels, as Kaggle's."""
        return "test.txt.gz" if self.gzipped else "test.txt"

    def ranges(self) -> dict[str, tuple[int, int]]:
        """The rows that ``ssmpi-prepare criteo`` makes train, test and validation: of these the ceiling is told."""
        return split_rows("days" if self.days else "kaggle", [b - a for a, b in self.files().values()])


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
        type=parse_cardinalities,
        help="distinct tokens of C1 to C26, with commas, instead of --scale",
    )
    add("--skew", type=float, default=1.05, help="Zipf's exponent of the token frequencies (default 1.05)")
    add(
        "--drift",
        type=float,
        default=0.0,
        help="0 to 1: how far base rate and token effects turn from first to last row",
    )
    add("--overwrite", action="store_true", help="replace files that are there")


def run(arguments: argparse.Namespace) -> int:
    """Write the files, print what was written and the ceiling; returns the exit code 0, raises UserError."""
    scale = arguments.scale
    _require(0 < scale <= 100 and math.isfinite(scale), f"--scale {scale:g}: must be above 0 and at most 100")
    settings = TeacherSettings(
        rows=arguments.rows,
        seed=arguments.seed,
        cardinalities=arguments.cardinalities or scaled_cardinalities(scale),
        skew=arguments.skew,
        drift=arguments.drift,
    )
    plan = Plan(
        arguments.folder, settings, arguments.days, arguments.unlabelled_rows, arguments.gzip, arguments.overwrite
    )
    began = time.monotonic()
    record = synthesize(plan)
    seconds = time.monotonic() - began
    files, rows = record["files"], sum(f["rows"] for f in record["files"])
    names = files[0]["file"] if len(files) == 1 else f"{files[0]['file']} ... {files[-1]['file']}"
    print(
        f"wrote {rows:,} rows, {sum(f['bytes'] for f in files) / 1e9:.2f} GB in {seconds:.1f} s: {plan.folder / names}"
    )
    print("the teacher's own scores, which no model can beat but by luck:")
    for name, part in {"all": record["overall"], **record["ranges"]}.items():
        print(f"  {name:<10} {_scores(part)}")
    print(f"kept in {plan.folder / TEACHER_NAME}")
    return 0


def synthesize(plan: Plan, block_rows: int = BLOCK_ROWS) -> dict[str, Any]:
    """Write the text and ``teacher.json``, whose content is returned. The block size changes nothing but memory."""
    teacher = Teacher(plan.teacher)
    labelled = plan.files()
    wanted = dict(labelled)
    if plan.unlabelled_rows:
        wanted[plan.unlabelled_file()] = (plan.teacher.rows, plan.teacher.rows + plan.unlabelled_rows)
    _make_room(plan, teacher, [*wanted, TEACHER_NAME])

    ranges = plan.ranges()
    ceilings = {name: Ceiling() for name in ranges}
    writer = TextWriter(block_rows, teacher.token_key())
    with Progress(Ranks(), "synthesize", plan.teacher.rows + plan.unlabelled_rows, "row") as progress:
        for name, (start, stop) in wanted.items():
            with _beside(plan.folder / name) as out:
                for first in range(start, stop, block_rows):
                    rows = min(block_rows, stop - first)
                    block = teacher.block(first, rows)
                    out.write(writer.text(block, labelled=name in labelled))
                    for split, (low, high) in ranges.items():
                        part = slice(max(low - first, 0), max(high - first, 0))
                        ceilings[split].add(block.logit[part], block.label[part])
                    progress.advance(rows, rows)
    record = _record(plan, wanted, ceilings)
    with _beside(plan.folder / TEACHER_NAME) as out:
        out.write(json.dumps(record, indent=1).encode() + b"\n")
    return record


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


def parse_cardinalities(text: str) -> tuple[int, ...]:
    """26 numbers with commas between them."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give {SPARSE_FEATURES} whole numbers with commas") from None


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise UserError(message)


def _make_room(plan: Plan, teacher: Teacher, names: list[str]) -> None:
    """Make the folder, refuse to replace files unasked, say how much disk is needed and see that it is there."""
    folder = plan.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made ({error.strerror}); give a folder that can be written to") from error
    there = [name for name in names if (folder / name).exists()]
    if there and not plan.overwrite:
        raise UserError(f"{folder}: {', '.join(there[:3])} already there; choose another folder or add --overwrite")
    sample = TextWriter(BLOCK_ROWS, teacher.token_key()).text(teacher.block(0, BLOCK_ROWS), labelled=True)
    bytes_per_row = len(gzip.compress(sample, GZIP_LEVEL) if plan.gzipped else sample) / BLOCK_ROWS
    need = 1.02 * bytes_per_row * (plan.teacher.rows + plan.unlabelled_rows)
    free = shutil.disk_usage(folder).free
    print(f"needs {need / 1e9:.2f} GB in {folder}, where {free / 1e9:.1f} GB are free", flush=True)
    _require(need < free, f"{folder}: needs {need / 1e9:.2f} GB, {free / 1e9:.2f} GB are free; ask for fewer --rows")
    # A record of other rows must not stay beside new text if this is interrupted.
    (folder / TEACHER_NAME).unlink(missing_ok=True)


@contextmanager
def _beside(path: Path) -> Iterator[IO[bytes]]:
    """Write beside ``path`` and rename when whole; compressed if the name says so, without a time stamp."""
    beside = path.with_name(f".{path.name}.tmp")
    try:
        with beside.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        beside.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        beside.unlink(missing_ok=True)


def _record(plan: Plan, files: dict[str, tuple[int, int]], ceilings: dict[str, Ceiling]) -> dict[str, Any]:
    """The content of ``teacher.json``. Row ranges are half-open, over all labelled files in order."""
    overall = Ceiling()
    for ceiling in ceilings.values():
        overall.merge(ceiling)
    return {
        "format": "ssmpi-teacher",
        "settings": {**asdict(plan.teacher), "days": plan.days, "unlabelled_rows": plan.unlabelled_rows},
        "files": [
            {
                "file": n,
                "rows": b - a,
                "bytes": (plan.folder / n).stat().st_size,
                "labelled": n != plan.unlabelled_file(),
            }
            for n, (a, b) in files.items()
        ],
        "overall": {"rows": [0, plan.teacher.rows], **overall.compute()},
        "ranges": {name: {"rows": list(r), **ceilings[name].compute()} for name, r in plan.ranges().items()},
    }


def _scores(part: dict[str, Any]) -> str:
    known = {name: f"{part[name]:.4f}" if part[name] is not None else "-" for name in ("auc", "log_loss", "ne")}
    rows, rate = part["rows"][1] - part["rows"][0], 100 * (part["label_rate"] or 0)
    return f"AUC {known['auc']}  log-loss {known['log_loss']}  NE {known['ne']}  ({rows:,} rows, {rate:.2f} % clicked)"
