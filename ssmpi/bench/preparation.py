"""``ssmpi bench prepare``: rows per core-second of ``ssmpi-prepare``, and the most memory that it takes.

Commands are measured as a user starts them, in turns, each round beginning with a different one. The rows are
synthetic: with few ids, or with some four millions (in two million rows). The time of a command for the first
``START_ROWS`` of them, to start and to load compiled code, is left out. Figures are medians; those of the user's CPU
seconds leave out the kernel's, most of which are what memory costs here.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ssmpi.bench import data, reporting, table_files
from ssmpi.bench.options import PrepareOptions
from ssmpi.bench.reporting import chosen, publish, say
from ssmpi.data.schema import read_manifest
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.runtime.host.mpi_environment import PYTHON

RESULT = "prepare.json"
START_ROWS, SHORT_ROWS = 5_000, 200_000
IDS = {"few ids": ("--scale", "0.01"), "4 M ids": ("--scale", "1", "--skew", "0.9")}
FILES = {"text": "train.txt", "csv": "train.csv", "parquet": "train.parquet"}


class Visit(NamedTuple):
    """What a command took: CPU seconds, those in user mode among them, and peak bytes."""

    seconds: float
    user: float
    peak: int


@dataclass
class Case:
    """A command and its visits, and those with its first rows alone."""

    name: str
    ids: str
    file: str
    found_ids: int = 0
    visits: list[Visit] = field(default_factory=list)
    starts: list[Visit] = field(default_factory=list)

    def words(self, raw: Path) -> list[str | Path]:
        """The command without its output; ``raw`` is the folder of its file."""
        if self.file == "text":
            return ["criteo", raw / FILES["text"], "--split", "kaggle"]
        return ["table", "--schema", raw / "schema.toml", raw / FILES[self.file]]

    def rate(self, rows: int) -> float:
        """Rows per core-second after the start."""
        return (rows - START_ROWS) / (self.median("seconds") - self.median("seconds", self.starts))

    def user_rate(self, rows: int) -> float:
        """As ``rate``, of seconds in user mode."""
        return (rows - START_ROWS) / (self.median("user") - self.median("user", self.starts))

    def median(self, name: str, of: Sequence[Visit] = ()) -> float:
        """Of all visits, or of some."""
        return statistics.median(getattr(one, name) for one in of or self.visits)


def cases() -> list[Case]:
    """All commands."""
    return [
        Case(f"{name}, {ids}", ids, file)
        for ids in IDS
        for name, file in (("criteo", "text"), ("table CSV", "csv"), ("table Parquet", "parquet"))
    ]


def measure(options: PrepareOptions) -> Path:
    """Make the rows, run all commands ``rounds`` times, print the table; returns the JSON file."""
    all_cases = cases()
    some = [case for case in all_cases if chosen(case.name, options.only)]
    if not some:
        names = "; ".join(case.name for case in all_cases)
        raise SettingsError(f"--only '{options.only}' lets nothing through of {names}")
    rows, rounds = (SHORT_ROWS, 1) if options.short else (options.rows, options.rounds)
    options.folder.mkdir(parents=True, exist_ok=True)
    header = reporting.describe()
    with tempfile.TemporaryDirectory(prefix="prepare-", dir=options.folder) as made:
        folder = Path(made)
        for ids in dict.fromkeys(case.ids for case in some):
            make_rows(folder, ids, rows, tables=any(case.ids == ids and case.file != "text" for case in some))
        for case in some:
            visit(case, folder / "first", folder / "out")  # compiles, if nothing has before
        for round_ in range(rounds):
            say(f"round {round_ + 1} of {rounds}")
            first = round_ % len(some)
            for case in some[first:] + some[:first]:
                case.starts.append(visit(case, folder / "first", folder / "out"))
                case.visits.append(visit(case, folder / "all", folder / "out"))
    report = {"machine": header, "rows": rows, "cases": [plain(case, rows) for case in some]}
    return publish(options.folder / RESULT, report, table(some, rows, rounds))


def make_rows(folder: Path, ids: str, rows: int, *, tables: bool) -> None:
    """Write ``rows`` rows of a kind to ``all / ids`` in ``folder``, and the first ones of them to ``first / ids``."""
    whole, first = folder / "all" / ids, folder / "first" / ids
    data.prepare("synthesize", whole, "--rows", str(rows), "--seed", "1", *IDS[ids])
    first.mkdir(parents=True)
    with (whole / FILES["text"]).open("rb") as text, (first / FILES["text"]).open("wb") as out:
        out.writelines(islice(text, START_ROWS))
    for place in (whole, first) if tables else ():
        (place / "schema.toml").write_text(table_files.schema(), encoding="utf-8")
        run([*PYTHON, "-m", table_files.__name__, *(place / name for name in FILES.values())])


def visit(case: Case, raw: Path, output: Path) -> Visit:
    """Prepare once."""
    found = run([*PYTHON, "-m", "data_prep", *case.words(raw / case.ids), "--output", output])
    case.found_ids = sum(read_manifest(output).cardinalities)
    shutil.rmtree(output)
    return found


def run(line: Sequence[str | Path]) -> Visit:
    """What a command took; DataError with its output if it fails."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(line, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise DataError(f"{' '.join(map(str, line))}: {said.read().decode(errors='replace').strip()}")
    return Visit(usage.ru_utime + usage.ru_stime, usage.ru_utime, usage.ru_maxrss * 1024)


def plain(case: Case, rows: int) -> dict[str, Any]:
    """A case as JSON."""
    return {
        "name": case.name, "ids": case.found_ids, "rows_per_core_second": case.rate(rows),
        "rows_per_user_second": case.user_rate(rows), "visits": [one._asdict() for one in case.visits],
        "starts": [one._asdict() for one in case.starts],
    }  # fmt: skip


def table(some: Sequence[Case], rows: int, rounds: int) -> str:
    """A line per command, and the ratios of rates between Parquet and CSV."""
    lines = [
        f"{rows:,} rows of 39 features, medians of {rounds} rounds in turns, CPU seconds without those of the start",
        f"{'ssmpi-prepare':24}       ids  M rows a core-second   lowest  highest  user CPU  start s  peak MB",
    ]
    for case in some:
        taken = [whole.seconds - start.seconds for whole, start in zip(case.visits, case.starts, strict=True)]
        rates = sorted((rows - START_ROWS) / 1e6 / seconds for seconds in taken)
        lines.append(
            f"{case.name:24}{case.found_ids:10,}{case.rate(rows) / 1e6:22.3f}{rates[0]:9.3f}{rates[-1]:9.3f}"
            f"{case.user_rate(rows) / 1e6:10.3f}{case.median('seconds', case.starts):9.2f}"
            f"{case.median('peak') / 1e6:9,.0f}"
        )
    return "\n".join([*lines, *ratios(some, rows)])


def ratios(some: Sequence[Case], rows: int) -> Iterator[str]:
    """For each kind of rows that both were measured with."""
    found = {(case.ids, case.file): case for case in some}
    for ids in IDS:
        if (ids, "csv") in found and (ids, "parquet") in found:
            csv, parquet = found[ids, "csv"], found[ids, "parquet"]
            ratio, of_user = parquet.rate(rows) / csv.rate(rows), parquet.user_rate(rows) / csv.user_rate(rows)
            yield f"Parquet / CSV, {ids}: {ratio:.2f}, of rows a user CPU second {of_user:.2f}"
