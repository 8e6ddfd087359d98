"""``ssmpi bench``: its kinds, and the functions behind them; as in ``commands`` each imports what it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ssmpi.bench import options
from ssmpi.cli.options import add_options, taken
from ssmpi.cli.subcommand import add, add_overrides

if TYPE_CHECKING:
    from ssmpi.cli.subcommand import Commands


def add_benchmarks(among: Commands) -> None:
    """``bench`` and its kinds."""
    text = "measure ssmpi, its upper bounds and other programs"
    kinds = among.add_parser("bench", help=text, description=text).add_subparsers(required=True, metavar="KIND")
    text = "examples per second of all contenders, in turns, and where time goes"
    sub = add(kinds, "throughput", throughput, text)
    add_overrides(sub, "data and model (default: synthetic Criteo, Kaggle DLRM)", run_file=True)
    add_options(sub, options.ThroughputOptions)
    text = "what codecs cost and save: nanoseconds and bytes per entry"
    add_options(add(kinds, "compression", compression, text), options.CompressionOptions)
    text = "rows per core-second of ssmpi-prepare: criteo, table with CSV and Parquet"
    add_options(add(kinds, "prepare", prepare, text), options.PrepareOptions)
    text = "what dynamic tables cost beside static ones of the same rows: nanoseconds an id of pulls and pushes"
    add_options(add(kinds, "tables", tables, text), options.TablesOptions)


def run_file_of(words: list[str]) -> Path | None:
    """Separate the run file, which may come before the overrides, from a command's words."""
    return Path(words.pop(0)) if words and "=" not in words[0] else None


def throughput(arguments: argparse.Namespace) -> int:
    """``ssmpi bench throughput``."""
    from ssmpi.bench.throughput import throughput as bench

    given = taken(options.ThroughputOptions, arguments)
    if given.names:
        print("\n".join(bench.names(given)))
    else:
        bench.measure(given, run_file_of(arguments.overrides), arguments.overrides)
    return 0


def compression(arguments: argparse.Namespace) -> int:
    """``ssmpi bench compression``."""
    from ssmpi.bench import compression as bench

    bench.measure(taken(options.CompressionOptions, arguments))
    return 0


def prepare(arguments: argparse.Namespace) -> int:
    """``ssmpi bench prepare``."""
    from ssmpi.bench import preparation as bench

    bench.measure(taken(options.PrepareOptions, arguments))
    return 0


def tables(arguments: argparse.Namespace) -> int:
    """``ssmpi bench tables``."""
    from ssmpi.bench import tables as bench

    bench.measure(taken(options.TablesOptions, arguments))
    return 0
