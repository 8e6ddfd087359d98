"""``ssmpi-prepare table``: turns CSV, TSV or Parquet files into shards, vocabulary and manifest, as a schema says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from data_prep.options import PrepareOptions
from data_prep.passes import open_job, run
from data_prep.pieces import RawSource
from data_prep.preparation import Preparation, RowFormat
from data_prep.progress import say
from data_prep.ranks import Ranks
from data_prep.raw.sources import PARQUET, expand, in_order, open_sources
from data_prep.splits import parse_fractions
from data_prep.table.schema import KEYS, MULTILINE, Schema, read_schema, some
from data_prep.vocabulary.vocabulary_file import Vocabulary
from ssmpi.data.schema import DatasetManifest
from ssmpi.runtime.errors import DataError, UserError
from ssmpi.runtime.files import atomic_file


def prepare(
    schema: Path, files: Sequence[Path], options: PrepareOptions, ranks: Ranks, *, hashed: bool = False
) -> DatasetManifest:
    """Prepare the files of a table into ``options.output``; resumes an interrupted run of the same arguments and files.
    ``hashed``: with keys of all categorical columns.

    Every rank of the job calls it. Raises UserError, on all ranks, for invalid input.
    """
    read = _read_hashed if hashed else read_schema
    manifest = run(_open_job(ranks.first(lambda: read(schema)), files, options, ranks))
    if not manifest.labelled and options.split_name != "test":
        say(
            ranks,
            f'WARNING: no label: nothing can be trained on this data. Write label = "..." at the top of {schema}.',
        )
    return manifest


def _read_hashed(path: Path) -> Schema:
    """A schema with keys of all categorical columns."""
    schema = read_schema(path)
    for setting in ("min_count", "hash"):
        there = [n for n, column in schema.categorical.items() if getattr(column, setting) not in (0, KEYS)]
        if there:
            instead = "embedding.dynamic.admit_after keeps rare keys out" if setting == "min_count" else "they get keys"
            print(f"--hash: {setting} of {', '.join(there)} in {path} is not used: {instead}")
    return schema.with_keys(schema.categorical)


def prepare_to_score(schema: Schema, file: Path, vocabulary: Path, output: Path) -> DatasetManifest:
    """Prepare the rows of a file, in their order, as the unlabelled split ``test``: the features that a schema names,
    without its label, time and group, which new rows need not have. Raises UserError for invalid input.
    """
    features = replace(schema, label=None, time="", group="")
    options = PrepareOptions(output, vocabulary=vocabulary, split="none", split_name="test")
    return run(_open_job(features, [file], options, Ranks()))


def _open_job(schema: Schema, files: Sequence[Path], options: PrepareOptions, ranks: Ranks) -> Preparation:
    if options.split:
        shares = (1.0,) if options.split == "none" else parse_fractions(options.split)
        schema = schema.split_again(shares)

    def open_format(sources: list[RawSource], options: PrepareOptions) -> RowFormat:
        _refuse_keys_beside_lists(schema)
        _refuse_without_vocabulary(schema, options)
        form: RowFormat = ranks.together(lambda: _format(schema, sources, options))
        ranks.first(lambda: _say_order(schema, sources, form))
        return form

    multiline = schema.separator if schema.quoting == MULTILINE else ""
    return open_job(files, options, ranks, open_format, partial(_check_columns, schema), multiline)


def _refuse_keys_beside_lists(schema: Schema) -> None:
    """UserError for rows that training could not read."""
    keyed = [name for name, column in schema.categorical.items() if column.hash == KEYS]
    if keyed and schema.lists:
        raise UserError(
            f"{keyed[0]} would have keys and {next(iter(schema.lists))} has lists of ids, and training cannot read "
            "both yet: hash into a fixed range instead (hash = 100000), or leave the lists out"
        )


def _refuse_without_vocabulary(schema: Schema, options: PrepareOptions) -> None:
    """UserError for options of vocabularies if all categorical columns are hashed."""
    if not all(column.hash for column in schema.sparse.values()):
        return
    if options.min_count > 1:
        raise UserError(
            f"--min-count {options.min_count}: all categorical columns are hashed, and nothing is counted: leave it "
            "out; embedding.dynamic.admit_after keeps rare keys out"
        )
    if options.extend_vocabulary and not any(column.transform == "standardize" for column in schema.dense.values()):
        raise UserError(
            "--extend-vocabulary: all categorical columns are hashed, and hashes are the same in every data set: leave "
            "it out"
        )


def _format(schema: Schema, sources: list[RawSource], options: PrepareOptions):  # type: ignore[no-untyped-def]  # noqa: ANN202
    ParquetTable, TextTable = _load("parquet").ParquetTable, _load("text").TextTable  # noqa: N806 - classes
    kinds = []
    for source in sources:
        with source.path.open("rb") as file:
            kinds.append(file.read(4) == PARQUET)
    if len(set(kinds)) > 1:
        other = sources[kinds.index(not kinds[0])]
        raise DataError(f"{other.path}: Parquet and text files cannot be mixed; prepare them apart")
    return (ParquetTable if kinds[0] else TextTable)(schema, sources, options.seed, options.fit_on == "train")


def _say_order(schema: Schema, sources: list[RawSource], form: RowFormat) -> None:
    """Print which files have no rows, and in which order several are read."""
    if empty := [source.name for source in sources if not form.estimated_rows(source)]:
        print(f"without rows, skipped: {some(empty, 3)}", flush=True)
    if len(sources) > 1:
        paths, hint = [source.path for source in sources], ""
        if schema.split.by == "rows" and not schema.time and paths != in_order(paths):
            hint = "; the split goes by it: give the folder, or a pattern in quotes, to have part 2 before part 10"
        print(f"{len(paths):,} files, in this order: {some((one.name for one in sources), 4)}{hint}", flush=True)


def write_guess(schema: Path, files: Sequence[Path], *, hashed: bool = False) -> None:
    """Write a schema from the first rows of the first file, ``hashed`` with keys of all categorical columns. UserError
    if there is such a file already.
    """
    if schema.exists():
        raise UserError(f"{schema}: exists, and would be lost; give another --schema, or remove it")
    text, remarks = _load("guess").guess(open_sources(expand(files)), hashed=hashed)
    atomic_file.write(schema, text)
    for remark in remarks:
        print(f"WARNING: {remark}")
    print(f"{schema}: look at every line, then start again without --guess and with --output")


def _load(name: str) -> Any:
    """A module that imports pyarrow, an optional dependency."""
    try:
        return import_module(f"data_prep.table.{name}")
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise UserError("tables need pyarrow, which is not installed: pip install 'ssmpi[tables]'") from error


def _check_columns(schema: Schema, vocabulary: Vocabulary) -> None:
    """DataError if a vocabulary is of other columns."""
    if vocabulary.about.get("table") != schema.columns_identity():
        raise DataError(
            f"{vocabulary.path}: was made with other columns than those of {schema.path}; give its own schema"
        )
