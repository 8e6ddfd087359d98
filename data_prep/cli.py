"""``ssmpi-prepare``: makes, inspects and verifies prepared data sets. Parses arguments and prints each error once."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path

from data_prep.ranks import BadRowError, Ranks, describe, join
from ssmpi import __version__
from ssmpi.runtime.errors import UserError
from ssmpi.runtime.host.startup import print_any_text

GIB = 1 << 30
MOST_GIB = 1 << 20
LATE = {  # module and help; imported on demand, because only they need compiled code or scikit-learn
    "synthesize": ("synthetic.synthesize", "make synthetic raw logs to try things with"),
    "baseline": ("check.baseline", "score a constant, a logistic regression and boosted trees on a prepared data set"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 unexpected, 2 bad input (damage that ``verify`` finds too) or usage, 130
    interrupted."""
    print_any_text()
    try:
        ranks = join()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    parsed = _parse(arguments, ranks)
    try:
        return _run(parsed, ranks)
    except (UserError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if ranks.rank == 0:
            hint = "; --on-bad-row skip leaves such rows out" if isinstance(error, BadRowError) else ""
            print(f"error: {describe(error)}{hint}", file=sys.stderr, flush=True)
        ranks.barrier()
        return 2
    except KeyboardInterrupt:
        print("interrupted; start again with the same arguments to resume", file=sys.stderr, flush=True)
        if ranks.size > 1:
            ranks.abort(130)
        return 130
    except Exception:
        print(f"rank {ranks.rank}: unexpected error, please report it:", file=sys.stderr)
        traceback.print_exc()
        sys.stderr.flush()
        if ranks.size > 1:
            ranks.abort(1)
        return 1


def _run(parsed: argparse.Namespace, ranks: Ranks) -> int:
    if parsed.command == "criteo":
        from data_prep.criteo import prepare

        prepare(parsed.raw, _options(parsed), ranks)
        return 0
    if parsed.command == "table":
        from data_prep.table import command

        if parsed.guess:
            ranks.first(lambda: command.write_guess(parsed.schema, parsed.raw, hashed=parsed.hash))
            return 0
        if parsed.output is None:
            raise UserError("--output is missing: name the folder of the prepared data set")
        command.prepare(parsed.schema, parsed.raw, _options(parsed), ranks, hashed=parsed.hash)
        return 0
    return ranks.first(lambda: _run_alone(parsed))


def _run_alone(parsed: argparse.Namespace) -> int:
    if parsed.command in LATE:
        return import_module(f"data_prep.{LATE[parsed.command][0]}").run(parsed)
    if parsed.command == "inspect":
        from data_prep.check.inspect import describe_folder

        print(describe_folder(parsed.folder))
        return 0
    from data_prep.check.verify import conclusion, verify

    findings = verify(parsed.folder)
    for finding in findings:
        print(f"error: {finding}", file=sys.stderr)
    if findings:
        print(conclusion(parsed.folder, findings), file=sys.stderr)
        return 2
    print(f"{parsed.folder}: intact; every file matches the manifest")
    return 0


def _parse(arguments: Sequence[str] | None, ranks: Ranks) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ssmpi-prepare", description="Make, show and check data sets for ssmpi.")
    parser.add_argument("--version", action="version", version=f"ssmpi-prepare {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    words = sys.argv[1:] if arguments is None else arguments
    for name, (module, text) in LATE.items():
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name in words:
            import_module(f"data_prep.{module}").add_arguments(command)
    text = "prepare Criteo Kaggle or Terabyte raw files"
    exact = commands.add_parser("criteo", help=text, epilog=EPILOG.format("criteo"), allow_abbrev=False)
    _add_criteo(exact)  # '--overwrit' is no way to remove a data set
    text = "prepare tables of any columns: CSV, TSV, Parquet"
    _add_table(commands.add_parser("table", help=text, epilog=EPILOG.format("table"), allow_abbrev=False))
    for name, text in (("inspect", "show what a prepared folder holds"), ("verify", "check a prepared folder")):
        commands.add_parser(name, help=text, description=text).add_argument("folder", type=Path)
    with contextlib.ExitStack() as quiet:
        if ranks.rank != 0:  # help and usage errors are the same on all ranks: print them once
            nowhere = quiet.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            quiet.enter_context(contextlib.redirect_stdout(nowhere))
            quiet.enter_context(contextlib.redirect_stderr(nowhere))
        try:
            return parser.parse_args(arguments)
        except SystemExit:
            ranks.barrier()  # if another rank exited earlier, this one would be ended before it has printed
            raise


EPILOG = (
    "If killed, start it again with the same arguments: it resumes. Any number of ranks (mpirun -n 4 "
    "ssmpi-prepare {} ...) gives the same bytes."
)


def _add_criteo(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prepare raw Criteo files (train.txt, day_*, plain or gzip, labelled or not) into HDF5 shards."
    add = parser.add_argument
    add("raw", type=Path, nargs="+", metavar="RAW", help="raw files; day_* are taken in day order")
    _add_common(parser, output=True)
    add("--max-ind-range", type=int, default=0, metavar="M", help="take tokens modulo M before counting")
    add(
        "--fit-on",
        choices=("all", "train"),
        default="all",
        help="rows to make the vocabulary from: all (default) includes validation and test, as in "
        "facebookresearch/dlrm; with train, tokens seen only there get id 1 (rare)",
    )
    add(
        "--split",
        metavar="KIND",
        help="kaggle: last seventh halved into test and validation; days: last file halved; none; or fractions for "
        "train,validation,test such as 0.8,0.1,0.1 (default: days for day_* files, none for unlabelled files or with "
        "--vocabulary, else kaggle)",
    )


def _add_table(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prepare the files of a table (CSV or TSV, plain, gzip or zstd; Parquet) into HDF5 shards."
    add = parser.add_argument
    add(
        "raw",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="files of the table, in the order of their rows, folders of them, or patterns in quotes",
    )
    add("--schema", type=Path, required=True, metavar="FILE", help="description of the columns (jobs/guide/data.md)")
    add("--guess", action="store_true", help="only write the schema, guessed from the first rows of the first file")
    add(
        "--hash",
        action="store_true",
        help="64-bit keys of all categorical columns, for dynamic tables: no vocabulary is made (jobs/guide/data.md); "
        "with --guess, the schema says so",
    )
    _add_common(parser, output=False)
    add(
        "--fit-on",
        choices=("all", "train"),
        help="rows to compute vocabulary, means and deviations from: train (default) or all",
    )
    add(
        "--split",
        metavar="KIND",
        help="instead of the schema's: none, or fractions for train,validation,test by the order of rows",
    )


def _add_common(parser: argparse.ArgumentParser, output: bool) -> None:
    add = parser.add_argument
    add("--output", "-o", type=Path, required=output, metavar="FOLDER", help="folder of the prepared data set")
    add("--overwrite", action="store_true", help="remove the data set that is in the folder first")
    add(
        "--vocabulary",
        type=Path,
        metavar="FOLDER",
        help="use the vocabulary of this prepared folder (or vocabulary.h5) instead of fitting one",
    )
    add(
        "--extend-vocabulary",
        type=Path,
        metavar="FOLDER",
        help="extend the vocabulary of this prepared folder (or vocabulary.h5): old tokens keep their ids, new ones "
        "follow",
    )
    add("--min-count", type=int, default=1, metavar="N", help="rarer tokens share id 1 (default 1)")
    add("--split-name", metavar="NAME", help="with --split none: train (default), validation or test (if unlabelled)")
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the order of training rows and of random splits (default 0)",
    )
    add("--no-shuffle", action="store_true", help="keep the training rows in order")
    add("--shard-rows", type=int, default=1 << 20, metavar="N", help="rows per shard (default 1048576)")
    add(
        "--on-bad-row", choices=("stop", "skip"), default="stop", help="skip counts and reports bad rows (default stop)"
    )
    add(
        "--memory",
        type=gibibytes,
        default=2.0,
        metavar="GIB",
        help="private memory per rank for counting tokens (default 2)",
    )
    add("--piece-bytes", type=int, default=128 << 20, metavar="N", help="raw text per unit of work (default 134217728)")


def gibibytes(text: str) -> float:
    """Parse an amount of memory in GiB."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MOST_GIB:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0 and at most {MOST_GIB:,}; give GiB such as 2")
    return value


def _options(parsed: argparse.Namespace):  # type: ignore[no-untyped-def]  # noqa: ANN202 - imported late
    from data_prep.options import PrepareOptions

    names = {field.name for field in fields(PrepareOptions)}
    same = {name: value for name, value in vars(parsed).items() if name in names}
    same["fit_on"] = parsed.fit_on or ("train" if parsed.vocabulary is None else "all")
    return PrepareOptions(
        **same,
        shuffle=not parsed.no_shuffle,
        skip_bad_rows=parsed.on_bad_row == "skip",
        memory_bytes=int(parsed.memory * GIB),
    )
