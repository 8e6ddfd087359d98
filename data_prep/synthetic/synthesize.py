"""Synthetic data sets: raw Criteo-format text of any size to try everything with, drawn from a teacher; or a table with
lists of tokens, and the schema of it.

The real sets are large and need a licence. These files have all their quirks, and the best possible score on them is
known: it is printed and stored in ``teacher.json``.
"""

from __future__ import annotations

import gzip
import json
import shutil
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
from data_prep.synthetic import text_writer
from data_prep.synthetic.teacher import Ceiling, Teacher, TeacherSettings
from data_prep.synthetic.text_writer import ONE_HOT, MultiHot, TextWriter, most_row_bytes
from ssmpi.runtime.errors import UserError
from ssmpi.runtime.files import atomic_file

TEACHER_NAME = "teacher.json"
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
        require(t.rows >= 1, f"--rows {t.rows}: ask for at least one row")
        require(self.days >= 0, f"--days {self.days}: give a number of files, or 0 for one train.txt")
        require(
            self.days != 1, "--days 1: the last day is kept for validation and test; give 0 for one train.txt, or 2"
        )
        require(
            t.rows >= self.days, f"--days {self.days}: more files than the {t.rows:,} rows of --rows; ask for fewer"
        )
        require(self.unlabelled_rows >= 0, f"--unlabelled-rows {self.unlabelled_rows}: must not be negative")
        require(0 <= t.seed < 2**63, f"--seed {t.seed}: must be between 0 and 2^63 - 1")
        require(0 <= t.drift <= 1, f"--drift {t.drift:g}: must be between 0 (none) and 1 (effects wholly replaced)")
        require(0 <= t.skew <= 3, f"--skew {t.skew:g}: Zipf's exponent must be between 0 (uniform) and 3")
        count = len(t.cardinalities)
        require(
            count == SPARSE_FEATURES, f"--cardinalities: {count} numbers, expected {SPARSE_FEATURES}, one per feature"
        )
        fits = all(1 <= c < 2**31 for c in t.cardinalities)
        require(fits, "--cardinalities: every feature needs at least 1 and fewer than 2^31 distinct tokens")
        require(0 <= t.turnover <= 1000, f"--turnover {t.turnover:g}: must be between 0 (no token goes) and 1000")
        most = max(t.cardinalities) * (int(t.turnover) + 2)
        require(
            not t.turnover or most < 2**31,
            f"--turnover {t.turnover:g}: up to {most:,} tokens of a feature come, and 2^31 - 1 can: give a smaller one,"
            " or a smaller --scale",
        )
        counts = len(self.multi_hot)
        require(
            counts in (0, SPARSE_FEATURES),
            f"--multi-hot: {counts} numbers, expected {SPARSE_FEATURES}, one per feature",
        )
        for name, count in zip(SPARSE_NAMES, self.multi_hot, strict=False):
            require(
                1 <= count <= text_writer.MOST,
                f"--multi-hot: {count} tokens in a list of {name}: give 1 to {text_writer.MOST:,}",
            )

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
        kind = text_writer.SHARES if self.multi_hot else "days" if self.days else "kaggle"
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
    others = [text_writer.SCHEMA_NAME, TEACHER_NAME] if plan.multi_hot else [TEACHER_NAME]
    _make_room(plan, teacher, [*wanted, *others])
    if plan.multi_hot:
        with _beside(plan.folder / text_writer.SCHEMA_NAME) as out:
            out.write(text_writer.schema(plan.multi_hot).encode())

    ranges = plan.ranges()
    ceilings = {name: Ceiling() for name in ranges}
    of_days = {name: Ceiling() for name in labelled if plan.days}
    with ProgressBar(Ranks(), "synthesize", plan.teacher.rows + plan.unlabelled_rows, "row") as progress:
        for name, (start, stop) in wanted.items():
            with _beside(plan.folder / name) as out:
                if plan.multi_hot:
                    out.write(text_writer.header(labelled=name in labelled))
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
