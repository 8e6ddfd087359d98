"""``ssmpi-prepare table --guess``: writes a schema from the first rows of a file, for its user to edit."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from data_prep.preparation import RawSource
from data_prep.raw.sources import TextStream
from data_prep.table.arrow_lists import are_lists
from data_prep.table.files import first_fields, quoting_of, refuse_other_text
from data_prep.table.guess_lists import NEARLY_ALL, separator_of, share_of
from data_prep.table.schema import LINE, UNQUOTED, some
from ssmpi.core.errors import DataError

SEPARATORS = "\t,;|"
LABELS = ("label", "click", "clicked", "is_click", "is_clicked", "conversion", "converted", "target", "y")
POSITIVE = ("yes", "y", "true", "t", "1", "click", "clicked", "conversion", "converted", "positive", "pos")
TIMES = ("time", "timestamp", "datetime", "date", "ts")
SAMPLE_ROWS = 1 << 16
SAMPLE_BYTES = 1 << 21
MISSING_WORDS = "NA", "na", "NaN", "nan", "None", "none", "-", "?"  # of numbers and dates; in text they may be words
MISSING = "NULL", "null", "\\N", "N/A", "n/a", "#N/A", "<NA>", *MISSING_WORDS
FEW = 64  # integers with fewer values are categories
EXACT = 2**53  # integers up to here are all of float64
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 to 9999, which dates in TOML have
MANY = 10_000  # with more, those seen once are rare
NUMERAL = r"^[-+]?\d+(\.\d+)?$"
AMOUNT = r"^[-+]?[$€£]? ?(\d+|\d{1,3}([,.' \x{a0}\x{202f}]\d{3})+)([.,]\d+)?( ?[$€£%])?$"  # 1,096.06
OR_KEYS = "; or hash = true: keys, for a dynamic table"
TEXTS = pa.string(), pa.large_string()
LISTED = {
    *TEXTS,
    *(getattr(pa, f"{u}int{bits}")() for u in ("", "u") for bits in (8, 16, 32, 64)),
}


@dataclass
class Sample:
    """The first rows of a file, the ``[table]`` of its schema, and whether these are all rows."""

    rows: pa.Table
    settings: list[str]
    whole: bool


def guess(sources: Sequence[RawSource], *, hashed: bool) -> str:
    """A schema in TOML, from the first of some files; ``hashed``: with keys of all categorical columns."""
    source = sources[0]
    with source.path.open("rb") as file:
        binary = file.read(4) == b"PAR1"
    sample = _of_parquet(source.path) if binary else _of_text(source)
    names = sample.rows.column_names
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{source.path}: two columns {twice[0]!r}; rename one")
    (label, label_line), time = _label(sample.rows), _time(sample.rows)
    found: dict[str, list[str]] = {"dense": [], "categorical": [], "list": [], "unused": []}
    for name in names:
        if name in (time, label):
            continue
        if not name.strip():
            found["unused"].append(f"# {_quoted(name)}: has no name, left out")
            continue
        kind, line = _column(name, sample.rows[name], hashed=hashed)
        found[kind].append(line)
    for name in sources[0].partition:
        if name not in names:
            kind, line = _partition(name, {source.partition.get(name, "") for source in sources})
            found[kind].append(line)
    whole = sample.whole and len(sources) == 1
    which = f"{'all' if whole else 'the first'} {sample.rows.num_rows:,} rows of {source.name}"
    lines = [f"# Guessed from {which}: look at every line."]
    gaps = sample.rows[label].null_count if label else 0
    lines.append(label_line + f"  # missing in {gaps:,} rows, which are bad ones: --on-bad-row skip" * bool(gaps))
    dates = _dates(sample.rows[time]) if time else []
    if time:
        lines.append(f"# time = {_quoted(time)}  # {'then split by it' if dates else 'then rows must be sorted by it'}")
    lines += sample.settings
    lines += _features(found, hashed=hashed)
    lines += ["", "[split]", 'by = "rows"', "shares = [0.8, 0.1, 0.1]"]
    if dates:
        first, train, validation, last = dates
        lines.append('# by = "time"  # instead of both' + ("" if whole else ", with dates from the whole data:"))
        lines.append(f"# train_until = {train if whole else f' # a date; the first rows are from {first} to {last}'}")
        lines.append(f"# validation_until = {validation if whole else ''}")
    return "\n".join(lines) + "\n"


def _features(found: dict[str, list[str]], *, hashed: bool) -> list[str]:
    """The sections of features."""
    categorical, lists = found["categorical"], found["list"]
    if lists:
        categorical = [line.removesuffix(OR_KEYS) for line in categorical]
        lists = ["[list]  # longest: as many values as the longest list of these rows has", *lists]
        if hashed and categorical:
            reason = "# Training cannot read lists and keys together yet. To have lists, leave out hash = true above."
            lists = [reason, *(f"# {line}" for line in lists)]
        lists = ["", *lists]
    return ["", "[dense]", *found["dense"], "", "[categorical]", *categorical, *found["unused"], *lists]


def _of_parquet(path: Path) -> Sample:
    try:
        with parquet.ParquetFile(path) as file:
            batch = next(file.iter_batches(SAMPLE_ROWS, use_threads=False), None)
            rows = file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error}); fetch it again") from error
    if batch is None:
        raise DataError(f"{path}: has no rows, from which to guess a schema")
    columns = {
        field.name: column.dictionary_decode() if pa.types.is_dictionary(field.type) else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    }
    return Sample(pa.table(columns), [], batch.num_rows == rows)


def _of_text(source: RawSource) -> Sample:
    _, first = first_fields(source, ",", quoted=True)
    refuse_other_text(source.path, first)
    separator = max(SEPARATORS, key=first.count)
    with TextStream(source) as stream:
        content = b"".join(bytes(text) for text, _ in stream.blocks(SAMPLE_BYTES)).removeprefix(codecs.BOM_UTF8)
        whole = stream.exhausted
    quoting = quoting_of(content, separator)
    names, _ = first_fields(source, separator, quoted=quoting != UNQUOTED)
    headless = any(re.fullmatch(r"\s*[-+.\d]+\s*", name) for name in names)
    settings = ["", "[table]", f"separator = {_quoted(separator)}"]
    if quoting != LINE:
        settings.append(f"quoting = {_quoted(quoting)}")
    if headless:
        names = [f"column{i}" for i in range(1, len(names) + 1)]
        settings.append("columns = [" + ", ".join(map(_quoted, names)) + "]")

    def read(missing: Sequence[str], **types: dict[str, pa.DataType]) -> pa.Table:
        """As the preparation does: true and false are text."""
        return arrow_csv.read_csv(
            pa.BufferReader(content),
            arrow_csv.ReadOptions(
                use_threads=False, block_size=len(content) + 1, column_names=names, skip_rows=int(not headless)
            ),
            arrow_csv.ParseOptions(
                delimiter=separator,
                quote_char='"' if quoting != UNQUOTED else False,
                invalid_row_handler=lambda row: "skip",
            ),
            arrow_csv.ConvertOptions(
                null_values=["", *missing], strings_can_be_null=True, true_values=[], false_values=[], **types
            ),
        )

    try:
        missing = _missing(read([], column_types=dict.fromkeys(names, pa.binary())), read(MISSING))
        rows = read(list(missing))
    except pa.ArrowInvalid as error:
        raise DataError(f"{source.path}: no schema can be guessed: {error}; write one by hand") from error
    if missing:
        where = "; ".join(f"{value} in {some(columns, 3)}" for value, columns in missing.items())
        settings.append(f"missing = [{', '.join(map(_quoted, ['', *missing]))}]  # {where}")
    return Sample(rows, settings, whole)


def _missing(texts: pa.Table, typed: pa.Table) -> dict[str, list[str]]:
    """The columns with each text that means a missing value, from all columns as bytes, and ``typed`` without them."""
    found: dict[str, list[str]] = {}
    clear = set(MISSING) - set(MISSING_WORDS)
    for field, column in zip(typed.schema, texts.columns, strict=True):
        there = pc.unique(column.filter(pc.is_in(column, pa.array(MISSING, pa.binary())))).to_pylist()
        for value in (one.decode() for one in there):
            found.setdefault(value, []).append(field.name)
            if field.type not in (*TEXTS, pa.binary(), pa.null()):
                clear.add(value)
    return {value: found[value] for value in MISSING if value in found and value in clear}


def _label(rows: pa.Table) -> tuple[str, str]:
    """The column that looks like the label, or none, and the line of the label."""
    for name in rows.column_names:
        column = rows[name].drop_null()
        number, integer = _are_numbers(column.type), pa.types.is_integer(column.type)
        if name.lower() == "rating" and (integer or number):
            return name, f'label = "{name} >= 4"'
        if name.lower() not in LABELS:
            continue
        if number:
            integer = not set(pc.unique(column).to_pylist()) - {0, 1}  # as pandas writes them if some are missing
        if integer or pa.types.is_boolean(column.type):
            return name, f"label = {_quoted(name)}"
        if column.type in TEXTS and len(values := sorted(pc.unique(column).to_pylist())) == 2:
            chosen = [value for value in values if value.lower() in POSITIVE]
            one = chosen[0] if len(chosen) == 1 else values[0]
            other, positive = values[values[0] == one], f"{name} == '{one}'"
            rule = f"label = {_quoted(positive)}  # else {_quoted(other)}"
            return name, rule if len(chosen) == 1 else f"# {rule}: say which of them is 1"
    return "", """# label = "..."  # a column of 0 and 1, or a rule: rating >= 4, clicked == 'yes'"""


def _time(rows: pa.Table) -> str | None:
    """The column that looks like the time: by its name, or else the first one of dates."""
    dates = (name for name in rows.column_names if _are_dates(rows.schema.field(name).type))
    return next((name for name in rows.column_names if name.lower() in TIMES), next(dates, None))


def _are_dates(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _are_numbers(kind: pa.DataType) -> bool:
    """Whether values may have fractions."""
    return pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _dates(column: pa.ChunkedArray) -> list[str]:
    """A column's first date, what 80 % and 90 % of its dates are before, and the last; empty if it has none."""
    column = column.drop_null()
    if not _are_dates(column.type) or not len(column):
        return []
    seconds = np.sort(column.cast(pa.timestamp("s"), safe=False).cast(pa.int64()).to_numpy())
    seconds = seconds[(seconds >= FIRST_SECOND) & (seconds <= LAST_SECOND)]
    places = [0, len(seconds) * 8 // 10, len(seconds) * 9 // 10, -1] if len(seconds) else []
    return [str(np.datetime64(int(seconds[place]), "s")) for place in places]


def _column(name: str, column: pa.ChunkedArray, *, hashed: bool) -> tuple[str, str]:
    """``dense``, ``categorical``, ``list`` or ``unused``, and the line of one column."""
    kind, key = column.type, name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
    if column.null_count < len(column) and are_lists(kind) and kind.value_type in LISTED:
        return "list", _list(key, column, "")
    if column.null_count == len(column) or pa.types.is_nested(kind) or pa.types.is_temporal(kind):
        return "unused", f"# {key}: {kind}, left out"
    if len(column) > 1 and pc.count_distinct(column, mode="all").as_py() == 1:
        return "unused", f"# {key}: the same in all rows seen, which says nothing; left out"
    if kind in TEXTS and (separator := separator_of(column)):
        return "list", _list(key, pc.split_pattern(column.cast(pa.string()), pattern=separator), separator)
    values = pc.count_distinct(column).as_py()
    scaled = "; takes a pass over the files, none and log1p do not" * hashed
    if _are_numbers(kind):
        ids = "; beyond 2^53: if these are ids, they are strings of [categorical]"
        scaled += ids * (pc.max(pc.abs(column.cast(pa.float64()))).as_py() >= EXACT)
        return "dense", f'{key} = "standardize"  # {values:,} values{scaled}'
    if pa.types.is_integer(kind) and values > FEW and not re.search(r"(^|_)id$|user|item", name.lower()):
        transform = "log1p" if pc.min(column).as_py() >= 0 else "standardize"
        return "dense", f'{key} = "{transform}"  # {values:,} values{scaled * (transform == "standardize")}'
    integer = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    rare = ", hash = true" if hashed else ", min_count = 2" if values > MANY else ""
    more = "" if hashed or not rare else OR_KEYS
    more += _of_numbers(column.drop_null()) if kind in TEXTS else ""
    kind_name = "integer" if integer else "string"
    return "categorical", f'{key} = {{ type = "{kind_name}"{rare} }}  # {values:,} values{more}'


def _partition(name: str, values: set[str]) -> tuple[str, str]:
    """As ``_column``, of a column that is in the names of folders."""
    if len(values) > 1:
        return "categorical", f'{_quoted(name)} = {{ type = "string" }}  # {len(values):,} folders {name}=...'
    return "unused", f"# {_quoted(name)}: the same in all folders {name}=..., left out"


def _of_numbers(texts: pa.ChunkedArray) -> str:
    """What is to be said of texts that look like numbers."""
    plain = pc.match_substring_regex(texts, NUMERAL)
    if share_of(plain) >= NEARLY_ALL and (others := texts.filter(pc.invert(plain))):
        return f"; numbers, but for {_quoted(others[0].as_py())}: does it mean a missing one (table.missing)?"
    if share_of(pc.match_substring_regex(texts, AMOUNT)) >= NEARLY_ALL:
        return "; these look like numbers with separators, which are read as text: take them out for [dense]"
    return ""


def _list(key: str, lists: pa.ChunkedArray, separator: str) -> str:
    """The line of a list column."""
    values = pc.list_flatten(lists).drop_null()
    if text := values.type in TEXTS:
        values = values.filter(pc.not_equal(values, ""))  # missing ones are left out
    whole = not text or bool(pc.all(pc.match_substring_regex(values, r"^-?\d{1,18}$")).as_py())
    distinct = pc.count_distinct(values).as_py()
    settings = [f'type = "{"integer" if whole else "string"}"', f"longest = {pc.max(pc.list_value_length(lists))}"]
    settings += [f"separator = {_quoted(separator)}"] * bool(separator) + ["min_count = 2"] * (distinct > MANY)
    return f"{key} = {{ {', '.join(settings)} }}  # {distinct:,} values"


def _quoted(text: str) -> str:
    """A TOML string."""
    return json.dumps(text, ensure_ascii=False)
