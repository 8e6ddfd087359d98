"""``ssmpi-prepare table --guess``: writes a schema from the first rows of a file, for its user to edit."""

from __future__ import annotations

import codecs
import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from data_prep.preparation import RawSource
from data_prep.raw.sources import PARQUET
from data_prep.raw.text_stream import TextStream
from data_prep.table.files import first_fields, quoting_of, refuse_other_text
from data_prep.table.guess_label import GIVES_AWAY, TEXTS, area_alone, guess_label
from data_prep.table.guess_lists import NEARLY_ALL, separator_of, share_of
from data_prep.table.lists import are_lists, usual
from data_prep.table.schema import BRACKETS, LINE, UNQUOTED, quoted, some
from data_prep.table.text_values import MOMENT, lists_in_brackets, times_of
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.words import counted

SEPARATORS = "\t,;|\x01"  # the last one is Hive's
TIMES = ("time", "timestamp", "datetime", "date", "ts")
OTHER_DATES = re.compile(r"birth|dob|sign|regist|join|releas|publi|expir|start|end|until|valid|since|first|last")
SAMPLE_BYTES = 1 << 27  # of text
DECODED = 4  # times as many of Parquet, which is compressed
BATCH_ROWS = 1 << 16
LIST_ROWS = 1 << 16  # that show whether text has lists
MISSING_WORDS = "NA", "na", "NaN", "nan", "None", "none", "-", "?"  # of numbers and dates; in text they may be words
MISSING = "NULL", "null", "\\N", "N/A", "n/a", "#N/A", "<NA>", *MISSING_WORDS
LEAST_ROWS = 50  # whose values are all different, for row numbers
RESTARTS = 1 / 200  # at most, of the steps of what counts up
ATOMIC = re.compile(r"(.+):(token|token_seq|float|float_seq)")  # RecBole's names and types of columns
IDS = re.compile(r"(^|_)([cgiptu]?id|ad|brand|campaign|cate|category|shop|product|movie|site|app)$|user|item")
DAY = re.compile(r"\d{4}-?\d\d-?\d\d.*")
EPOCH_SECONDS = 10**8  # numbers from here on, in 1973, are times of a calendar
FEW = 64  # integers with fewer values are categories
EXACT = 2**53  # integers up to here are all of float64
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # of the years 1 to 9999, which dates in TOML have
MANY = 10_000  # with more, those seen once are rare
NUMERAL = r"^[-+]?\d+(\.\d+)?$"
AMOUNT = r"^[-+]?[$€£]? ?(\d+|\d{1,3}([,.' \x{a0}\x{202f}]\d{3})+)([.,]\d+)?( ?[$€£%])?$"  # 1,096.06
LEADING_ZERO, BEYOND = r"^\s*[-+]?0\d+", r"^\s*[-+]?\d{19,}$"
OR_KEYS = "; or hash = true: keys, for a dynamic table"
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


def guess(sources: Sequence[RawSource], *, hashed: bool) -> tuple[str, list[str]]:
    """A schema in TOML, from the first of some files, and what its user has to be told; ``hashed``: with keys of all
    categorical columns.
    """
    source = sources[0]
    with source.path.open("rb") as file:
        binary = file.read(len(PARQUET)) == PARQUET
    sample = _of_parquet(source.path) if binary else _of_text(source)
    rows, names = sample.rows, sample.rows.column_names
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{source.path}: two columns {twice[0]!r}; rename one")
    plain, types = _declared(names)
    label, (time, sure) = guess_label(rows, plain), _time(rows, plain)
    found: dict[str, list[str]] = {"dense": [], "categorical": [], "list": [], "unused": []}
    remarks = [label.remark] * bool(label.remark)
    for name in (name for name in names if name not in (time, label.column)):
        if not name.strip():
            found["unused"].append(f"# {quoted(name)}: has no name, left out")
            continue
        kind, line = _column(name, rows[name], types.get(name, ""), hashed=hashed)
        if kind != "unused" and (reason := label.left_out.get(name)):
            line = f"# {line.removesuffix(OR_KEYS)}; left out: it {reason}"
        if line[0] != "#" and (area := area_alone(rows, label, name)) >= GIVES_AWAY:
            alone = f"alone tells the label (AUC {area:.4f})"
            line += f"; {alone}: known before it?"
            remarks.append(f"{name} {alone}; leave it out unless it is known before the label")
        found[kind].append(line)
    for name in sources[0].partition:
        if name not in names:
            kind, line = _partition(name, {source.partition.get(name, "") for source in sources})
            found[kind].append(line)
    whole = sample.whole and len(sources) == 1
    which = f"{'all' if whole else 'the first'} {counted(rows.num_rows, 'row')} of {source.name}"
    lines = [f"# Guessed from {which}: look at every line.", *label.lines]
    dates, known = _dates(rows[time]) if time else ([], False)
    split = _split(time or "", dates, whole=whole, known=known and sure)
    lines += [*split[0], *sample.settings, *_features(found, hashed=hashed), *split[1]]
    return "\n".join(lines) + "\n", remarks


def _split(time: str, dates: Sequence[str], *, whole: bool, known: bool) -> tuple[list[str], list[str]]:
    """The lines of the time and of the split: by time if the times of all rows are ``known`` and cut them in three."""
    by_rows, line = ['by = "rows"', "shares = [0.8, 0.1, 0.1]"], f"time = {quoted(time)}"
    if not dates:
        return [f"# {line}  # then rows must be sorted by it"] * bool(time), ["", "[split]", *by_rows]
    first, train, validation, last = dates
    until = [f"train_until = {train}", f"validation_until = {validation}"]
    if whole and known and first != train != validation:
        return [line], ["", "[split]", 'by = "time"', *until, *(f"# {one}" for one in by_rows)]
    if not whole:
        until = [f"train_until =  # a date; the first rows are from {first} to {last}", "validation_until = "]
    by_time = ['by = "time"  # instead of both' + ", with dates from the whole data:" * (not whole), *until]
    return [f"# {line}  # then split by it"], ["", "[split]", *by_rows, *(f"# {one}" for one in by_time)]


def _declared(names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Names without the types in them, and these types, if all names have one: ``user_id:token``."""
    parts = {name: ATOMIC.fullmatch(name) for name in names}
    if not all(parts.values()):
        return {name: name for name in names}, {}
    return {n: part[1] for n, part in parts.items() if part}, {n: part[2] for n, part in parts.items() if part}


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
    batches, size = [], 0
    try:
        with parquet.ParquetFile(path) as file:
            total = file.metadata.num_rows
            for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
                batches.append(batch)
                size += batch.nbytes
                if size >= SAMPLE_BYTES * DECODED:
                    break
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error}); fetch it again") from error
    if not batches:
        raise DataError(f"{path}: has no rows, from which to guess a schema")
    names = batches[0].schema.names
    columns = [pa.chunked_array([_decoded(batch.column(i)) for batch in batches]) for i in range(len(names))]
    rows = pa.table(columns, names)
    return Sample(rows, [], rows.num_rows == total)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else usual(column)


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
    settings = ["", "[table]", f"separator = {quoted(separator)}"]
    if quoting != LINE:
        settings.append(f"quoting = {quoted(quoting)}")
    if headless:
        names = [f"column{i}" for i in range(1, len(names) + 1)]
        settings.append("columns = [" + ", ".join(map(quoted, names)) + "]")

    def read(missing: Sequence[str], types: Mapping[str, pa.DataType]) -> pa.Table:
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
                null_values=["", *missing], strings_can_be_null=True, true_values=[], false_values=[],
                column_types=types,
            ),
        )  # fmt: skip

    try:
        texts, typed = read([], dict.fromkeys(names, pa.binary())), read(MISSING, {})
        missing = _missing(texts, typed)
        digits = _of_digits(texts, typed)
        del texts, typed
        rows = _with_times(read(list(missing), dict.fromkeys(digits, pa.string())))
    except pa.ArrowInvalid as error:
        raise DataError(f"{source.path}: no schema can be guessed: {error}; write one by hand") from error
    if missing:
        where = "; ".join(f"{value} in {some(columns, 3)}" for value, columns in missing.items())
        settings.append(f"missing = [{', '.join(map(quoted, ['', *missing]))}]  # {where}")
    return Sample(rows, settings, whole)


def _of_digits(texts: pa.Table, typed: pa.Table) -> list[str]:
    """The columns of digits that are no numbers: as such they would lose leading zeros, or digits beyond 64 bits."""
    found = []
    for field, column in zip(typed.schema, texts.columns, strict=True):
        beyond = f"$|{BEYOND}" * pa.types.is_floating(field.type)
        digits = pa.types.is_integer(field.type) or beyond
        if digits and pc.any(pc.match_substring_regex(column, LEADING_ZERO + beyond)).as_py():
            found.append(field.name)
    return found


def _with_times(rows: pa.Table) -> pa.Table:
    """The rows with text such as ``2025-03-01 10:00:00 UTC`` as times, which Arrow leaves as text."""
    for place, name in enumerate(rows.column_names):
        column = rows.column(place)
        there = column.drop_null()
        if column.type in TEXTS and len(there) and re.match(MOMENT, there[0].as_py()):
            with contextlib.suppress(pa.ArrowInvalid):  # other text that begins as a time does
                rows = rows.set_column(place, name, times_of(column.combine_chunks()))
    return rows


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


def _time(rows: pa.Table, plain: Mapping[str, str]) -> tuple[str | None, bool]:
    """The column that looks like the time: by its name, or else the first one of dates; and whether it must be that of
    the row, as its name says, or as no other column has dates, and it is not that of a birth.
    """
    dates = [name for name in rows.column_names if _are_dates(rows.schema.field(name).type)]
    named = [name for name in rows.column_names if plain[name].lower() in TIMES]
    sure = bool(named) or (len(dates) == 1 and not OTHER_DATES.search(dates[0].lower()))
    return next(iter(named + dates), None), sure


def _are_dates(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _are_numbers(kind: pa.DataType) -> bool:
    """Whether values may have fractions."""
    return pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _dates(column: pa.ChunkedArray) -> tuple[list[str], bool]:
    """A column's first time, what 80 % and 90 % of its times are before, and the last, as TOML has them, and whether
    all rows have one. Times are dates, or numbers that can be seconds since 1970; of others there are none.
    """
    there = column.drop_null()
    if _are_dates(column.type):
        values = np.sort(there.cast(pa.timestamp("s"), safe=False).cast(pa.int64()).to_numpy())
        values = values[(values >= FIRST_SECOND) & (values <= LAST_SECOND)].astype("datetime64[s]")
    elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        values = np.sort(there.to_numpy())
        values = values if len(values) and values[0] >= EPOCH_SECONDS else values[:0]
    else:
        values = np.empty(0)
    places = [0, len(values) * 8 // 10, len(values) * 9 // 10, -1] if len(values) else []
    return [str(values[place]) for place in places], len(values) == len(column)


def _column(name: str, column: pa.ChunkedArray, declared: str, *, hashed: bool) -> tuple[str, str]:
    """``dense``, ``categorical``, ``list`` or ``unused``, and the line of one column, of the type that its name has
    ``declared``, if any.
    """
    column = column if declared == "float" else _whole(column)
    kind, key = column.type, name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)
    if column.null_count < len(column) and are_lists(kind) and kind.value_type in LISTED:
        return "list", _list(key, column, "")
    if column.null_count == len(column) or pa.types.is_nested(kind) or pa.types.is_temporal(kind):
        return "unused", f"# {key}: {kind}, left out"
    if declared == "float_seq":
        return "unused", f"# {key}: lists of numbers, which are no ids; left out"
    if len(column) > 1 and pc.count_distinct(column, mode="all").as_py() == 1:
        return "unused", f"# {key}: the same in all rows seen, which says nothing; left out"
    if declared == "token_seq":
        return "list", _list(key, column.cast(pa.string()), " ")
    if kind in TEXTS and not declared and (separator := separator_of(column[:LIST_ROWS])):
        return "list", _list(key, column.cast(pa.string()), separator)
    values = pc.count_distinct(column).as_py()
    scaled = "; takes a pass over the files, none and log1p do not" * hashed
    if _are_numbers(kind):
        ids = "; beyond 2^53: if these are ids, they are strings of [categorical]"
        scaled += ids * (pc.max(pc.abs(column.cast(pa.float64()))).as_py() >= EXACT)
        return "dense", f'{key} = "standardize"  # {values:,} values{scaled}'
    integer, plain = pa.types.is_integer(kind), ATOMIC.sub(r"\1", name.lower())
    if integer and (declared == "float" or (not declared and values > FEW and not IDS.search(plain))):
        transform = "log1p" if pc.min(column).as_py() >= 0 else "standardize"
        line = f'{key} = "{transform}"  # {values:,} values{scaled * (transform == "standardize")}'
        return "dense", _unless_row_numbers(line, column)
    rare = ", hash = true" if hashed else ", min_count = 2" if values > MANY else ""
    more = _of_numbers(column.drop_null()) if kind in TEXTS else ""
    kind_name = "integer" if integer or pa.types.is_boolean(kind) else "string"
    line = f'{key} = {{ type = "{kind_name}"{rare} }}  # {values:,} values'
    if not more:
        line = _unless_row_numbers(line, column)
    return "categorical", line + ("" if hashed or not rare else OR_KEYS) * (line[0] != "#") + more


def _whole(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats that are all whole as integers: ids become floats where pandas finds some of them missing."""
    if not pa.types.is_floating(column.type):
        return column
    values = column.to_numpy()
    there = ~np.isnan(values)
    if not there.any() or np.any(np.abs(values[there]) >= EXACT) or np.any(values[there] % 1):
        return column
    return pa.chunked_array([pa.array(np.where(there, values, 0).astype(np.int64), mask=~there)])


def _unless_row_numbers(line: str, column: pa.ChunkedArray) -> str:
    """The line of a column of integers or text, as a comment if its values are different in all rows, or count them."""
    values = column.drop_null()
    if len(values) < LEAST_ROWS:
        return line
    if pc.count_distinct(values).as_py() == len(values):
        return f"# {line}, all different, as row numbers are: left out"
    if pa.types.is_integer(values.type) and np.mean(np.diff(values.to_numpy()) != 1) < RESTARTS:
        return f"# {line}, which count up as row numbers do: left out"
    return line


def _partition(name: str, values: set[str]) -> tuple[str, str]:
    """As ``_column``, of a column that is in the names of folders."""
    if len(values) > 1:
        line = f'{quoted(name)} = {{ type = "string" }}  # {len(values):,} folders {name}=...'
        dates = all(DAY.fullmatch(value) for value in values)
        return (
            ("unused", f"# {line}, dates that rows to score will not have: left out")
            if dates
            else ("categorical", line)
        )
    return "unused", f"# {quoted(name)}: the same in all folders {name}=..., left out"


def _of_numbers(texts: pa.ChunkedArray) -> str:
    """What is to be said of texts that look like numbers."""
    plain = pc.match_substring_regex(texts, NUMERAL)
    if share_of(plain) >= NEARLY_ALL:
        if others := texts.filter(pc.invert(plain)):
            return f"; numbers, but for {quoted(others[0].as_py())}: does it mean a missing one (table.missing)?"
        zeros = pc.any(pc.match_substring_regex(texts, LEADING_ZERO)).as_py()
        return "; text, since numbers have no leading zeros: 07 and 7 are two" if zeros else ""
    if share_of(pc.match_substring_regex(texts, AMOUNT)) >= NEARLY_ALL:
        return "; these look like numbers with separators, which are read as text: take them out for [dense]"
    return ""


def _list(key: str, lists: pa.ChunkedArray, separator: str) -> str:
    """The line of a list column; with a ``separator``, of text."""
    if separator == BRACKETS:
        lists = lists_in_brackets(lists.cast(pa.binary()).combine_chunks()).cast(pa.list_(pa.string()))
    elif separator:
        lists = pc.split_pattern(lists, pattern=separator)
    values = pc.list_flatten(lists).drop_null()
    if text := values.type in TEXTS:
        values = values.filter(pc.not_equal(values, ""))  # missing ones are left out
    whole = not text or bool(pc.all(pc.match_substring_regex(values, r"^(0|-?[1-9]\d{0,17})$")).as_py())
    distinct = pc.count_distinct(values).as_py()
    settings = [f'type = "{"integer" if whole else "string"}"', f"longest = {pc.max(pc.list_value_length(lists))}"]
    settings += [f"separator = {quoted(separator)}"] * bool(separator) + ["min_count = 2"] * (distinct > MANY)
    return f"{key} = {{ {', '.join(settings)} }}  # {distinct:,} values"
