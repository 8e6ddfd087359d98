"""``ssmpi-prepare synthesize``: raw Criteo-format text of any size to try everything with, drawn from a teacher; or a
table with lists of tokens, and the schema of it.

The real sets are large and need a licence. These files have all their quirks, and the best possible score on them is
known: it is printed and stored in ``teacher.json``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from data_prep.progress import ProgressBar
from data_prep.ranks import Ranks
from data_prep.raw.parser import SPARSE_FEATURES, SPARSE_NAMES
from data_prep.splits import split_rows
from data_prep.synthetic.teacher import Ceiling, Teacher, TeacherSettings, scaled_cardinalities
from data_prep.synthetic.text_writer import (
    MOST,
    ONE_HOT,
    SCHEMA_NAME,
    SHARES,
    MultiHot,
    TextWriter,
    header,
    most_row_bytes,
    schema,
)
from ssmpi.runtime.errors import UserError
from ssmpi.runtime.files import atomic_file

TEACHER_NAME = "teacher.json"
SUFFIXES = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
MOST_TURNOVER = 1000
ONE_EACH = f"expected {SPARSE_FEATURES}, one per feature"
BLOCK_ROWS = 16_384
BLOCK_BYTES = 32 << 20  # the most text of a block
GZIP_LEVEL = 1


@dataclass(frozen=True)
class SynthesisPlan:
    """What to write. Rows are spread evenly over ``days`` files, the first ones taking the remainder; 0: train.txt.
    ``multi_hot``: tokens of each feature's list; empty for Criteo's format, one token each.
    """

    folder: Path
    teacher: TeacherSettings
    days: int = 0
    unlabelled_rows: int = 0
    gzipped: bool = False
    overwrite: bool = False
    multi_hot: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        t = self.teacher
        rows, days, sizes, lists = t.rows, self.days, t.cardinalities, self.multi_hot
        most = max(sizes, default=0) * (int(t.turnover) + 2) if 0 <= t.turnover <= MOST_TURNOVER else 0
        long = [f"{n} tokens in a list of {f}" for f, n in zip(SPARSE_NAMES, lists, strict=False) if not 1 <= n <= MOST]
        checks = (
            (rows >= 1, f"--rows {rows}: ask for at least one row"),
            (days >= 0, f"--days {days}: give a number of files, or 0 for one train.txt"),
            (days != 1, "--days 1: the last day is kept for validation and test; give 0 for one train.txt, or 2"),
            (rows >= days, f"--days {days}: more files than the {rows:,} rows of --rows; ask for fewer"),
            (self.unlabelled_rows >= 0, f"--unlabelled-rows {self.unlabelled_rows}: must not be negative"),
            (0 <= t.seed < 2**63, f"--seed {t.seed}: must be between 0 and 2^63 - 1"),
            (0 <= t.drift <= 1, f"--drift {t.drift:g}: must be between 0 (none) and 1 (effects wholly replaced)"),
            (0 <= t.skew <= 3, f"--skew {t.skew:g}: Zipf's exponent must be between 0 (uniform) and 3"),
            (len(sizes) == SPARSE_FEATURES, f"--cardinalities: {len(sizes)} numbers, {ONE_EACH}"),
            (
                all(1 <= size < 2**31 for size in sizes),
                "--cardinalities: every feature needs at least 1 and fewer than 2^31 distinct tokens",
            ),
            (
                0 <= t.turnover <= MOST_TURNOVER,
                f"--turnover {t.turnover:g}: must be between 0 (no token goes) and {MOST_TURNOVER}",
            ),
            (
                not t.turnover or most < 2**31,
                f"--turnover {t.turnover:g}: up to {most:,} tokens of a feature come, and 2^31 - 1 can: give a smaller "
                "one, or a smaller --scale",
            ),
            (len(lists) in (0, SPARSE_FEATURES), f"--multi-hot: {len(lists)} numbers, {ONE_EACH}"),
            (not long, f"--multi-hot: {next(iter(long), '')}: give 1 to {MOST:,}"),
        )
        for holds, message in checks:
            require(holds, message)

    @property
    def lists(self) -> MultiHot:
        """How many tokens a feature has in a row."""
        if not self.multi_hot:
            return ONE_HOT
        return MultiHot(np.array(self.multi_hot, np.int64), np.array(self.teacher.cardinalities, np.int64))

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
        """The row ranges of train, test and validation in ``ssmpi-prepare criteo``, or by the schema of lists, for
        which the ceiling is computed.
        """
        kind = SHARES if self.multi_hot else "days" if self.days else "kaggle"
        return split_rows(kind, [b - a for a, b in self.files().values()])

    def writer(self, teacher: Teacher, block_rows: int) -> tuple[TextWriter, int]:
        """What makes text of rows, and of how many at once: at most ``block_rows``."""
        rows = max(1, min(block_rows, BLOCK_BYTES // most_row_bytes(self.lists)))
        return TextWriter(rows, teacher.token_key(), self.lists), rows


def synthesize(plan: SynthesisPlan, block_rows: int = BLOCK_ROWS) -> dict[str, Any]:
    """Write the text and ``teacher.json``; returns its content. The block size only affects memory."""
    teacher = Teacher(plan.teacher)
    labelled = plan.files()
    wanted = dict(labelled)
    if plan.unlabelled_rows:
        wanted[plan.unlabelled_file()] = (plan.teacher.rows, plan.teacher.rows + plan.unlabelled_rows)
    writer, block_rows = plan.writer(teacher, block_rows)
    others = [SCHEMA_NAME, TEACHER_NAME] if plan.multi_hot else [TEACHER_NAME]
    _make_room(plan, teacher, [*wanted, *others])
    if plan.multi_hot:
        with _beside(plan.folder / SCHEMA_NAME) as out:
            out.write(schema(plan.multi_hot).encode())

    ranges = plan.ranges()
    ceilings = {name: Ceiling() for name in ranges}
    of_days = {name: Ceiling() for name in labelled if plan.days}
    with ProgressBar(Ranks(), "synthesize", plan.teacher.rows + plan.unlabelled_rows, "row") as progress:
        for name, (start, stop) in wanted.items():
            with _beside(plan.folder / name) as out:
                if plan.multi_hot:
                    out.write(header(labelled=name in labelled))
                for first in range(start, stop, block_rows):
                    rows = min(block_rows, stop - first)
                    block = teacher.block(first, rows)
                    out.write(writer.text(block, labelled=name in labelled))
                    for split, (low, high) in ranges.items():
                        part = slice(max(low - first, 0), max(high - first, 0))
                        ceilings[split].add(block.logit[part], block.label[part])
                    if name in of_days:
                        of_days[name].add(block.logit, block.label)
                    progress.advance(rows, rows)
    record = _record(plan, wanted, ceilings)
    if plan.days:
        record["days"] = {name: {"rows": list(labelled[name]), **of_days[name].compute()} for name in of_days}
    with _beside(plan.folder / TEACHER_NAME) as out:
        out.write(json.dumps(record, indent=1).encode() + b"\n")
    return record


def require(holds: bool, message: str) -> None:
    """Raise UserError with ``message`` unless something holds."""
    if not holds:
        raise UserError(message)


def _make_room(plan: SynthesisPlan, teacher: Teacher, names: list[str]) -> None:
    """Check that no file would be replaced unasked, check and print the disk space needed, make the folder."""
    folder = plan.folder
    there = [name for name in names if (folder / name).exists()]
    if there and not plan.overwrite:
        raise UserError(f"{folder}: {', '.join(there[:3])} already there; choose another folder or add --overwrite")
    writer, rows = plan.writer(teacher, BLOCK_ROWS)
    sample = writer.text(teacher.block(0, rows), labelled=True)
    bytes_per_row = len(gzip.compress(sample, GZIP_LEVEL) if plan.gzipped else sample) / rows
    need = 1.02 * bytes_per_row * (plan.teacher.rows + plan.unlabelled_rows)
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    print(f"needs {need / 1e9:.2f} GB in {folder}, where {free / 1e9:.1f} GB are free", flush=True)
    require(need < free, f"{folder}: needs {need / 1e9:.2f} GB, {free / 1e9:.2f} GB are free; ask for fewer --rows")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made ({error.strerror}); give a folder that can be written to") from error
    # If this is interrupted, no record of other rows may remain beside new text.
    (folder / TEACHER_NAME).unlink(missing_ok=True)


@contextmanager
def _beside(path: Path) -> Iterator[IO[bytes]]:
    """Write to a temporary file and rename it to ``path`` when complete; compressed if the name ends so, without a time
    stamp.
    """
    try:
        with atomic_file.whole(path) as beside, beside.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield raw
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error


def _record(plan: SynthesisPlan, files: dict[str, tuple[int, int]], ceilings: dict[str, Ceiling]) -> dict[str, Any]:
    """The content of ``teacher.json``. Row ranges are half-open, over all labelled files in order."""
    overall = Ceiling()
    for ceiling in ceilings.values():
        overall.merge(ceiling)
    settings = {**asdict(plan.teacher), "days": plan.days, "unlabelled_rows": plan.unlabelled_rows}
    if plan.multi_hot:
        settings["multi_hot"] = plan.multi_hot
    return {
        "format": "ssmpi-teacher",
        "settings": settings,
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
