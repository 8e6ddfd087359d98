"""``ssmpi-prepare table --guess``: writes a schema from the first rows of a file, for its user to edit."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from data_prep.pieces import RawSource
from data_prep.raw.sources import PARQUET
from data_prep.raw.text_stream import TextStream
from data_prep.table.guess_label import GIVES_AWAY, TEXTS, area_alone, guess_label
from data_prep.table.guess_lists import NEARLY_ALL, separator_of, share_of
from data_prep.table.lists import are_lists, usual
from data_prep.table.schema import BRACKETS, LINE, UNQUOTED, quoted, some
from data_prep.table.text import first_fields, quoting_of, refuse_other_text
from data_prep.table.text_values import integers_of, lists_in_brackets, numbers_of, times_of
from ssmpi.runtime.errors import DataError
from ssmpi.runtime.words import counted

SEPARATORS = "\t,;|\x01"  # the last one is Hive's
TIMES = ("time", "timestamp", "datetime", "date", "ts")
OTHER_DATES = re.compile(r"birth|dob|sign|regist|join|releas|publi|expir|start|end|until|valid|since|first|last")
SAMPLE_BYTES = 1 << 27  # of text
DECODED = 4  # times as many of Parquet, which is compressed
BATCH_ROWS = 1 << 16
LIST_ROWS = 1 << 16  # that show whether text has lists
TRIED_ROWS = 1 << 10  # that usually show what text is not
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
LEADING_ZERO, BEYOND = r"^\s*[-+]?0\d+\s*$", r"^\s*[-+]?\d{19,}\s*$"
READERS = (  # what text is, the first that fits, unless a value would be another number: 07, or 2**64
    (integers_of, LEADING_ZERO),
    (numbers_of, f"{LEADING_ZERO}|{BEYOND}"),
    (times_of, ""),
)
OR_KEYS = "; or hash = true: keys, for a dynamic table"


class Sample(NamedTuple):
    """The first rows of a file, the ``[table]`` of its schema, and whether these are all rows."""

    rows: pa.Table
    settings: list[str]
    whole: bool


class Line(NamedTuple):
    """The line of a column in the schema, and its section: ``dense``, ``categorical`` or ``list``, or ``unused``."""

    section: str
    text: str


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
    lines, remarks = [], [label.remark] * bool(label.remark)
    for name in (name for name in names if name not in (time, label.column)):
        section, line = _column(name, rows[name], types.get(name, ""), hashed=hashed)
        if section != "unused" and (reason := label.left_out.get(name)):
            line = f"# {line.removesuffix(OR_KEYS)}; left out: it {reason}"
        if line[0] != "#" and (area := area_alone(rows, label, name)) >= GIVES_AWAY:
            alone = f"alone tells the label (AUC {area:.4f})"
            line += f"; {alone}: known before it?"
            remarks.append(f"{name} {alone}; leave it out unless it is known before the label")
        lines.append(Line(section, line))
    partitions = [name for name in source.partition if name not in names]
    lines += [_partition(name, {source.partition.get(name, "") for source in sources}) for name in partitions]
    whole = sample.whole and len(sources) == 1
    which = f"{'all' if whole else 'the first'} {counted(rows.num_rows, 'row')} of {source.name}"
    dates, known = _dates(rows[time]) if time else ([], False)
    of_time, split = _split(time or "", dates, whole=whole, known=known and sure)
    head = [f"# Guessed from {which}: look at every line.", *label.lines, *of_time]
    return "\n".join([*head, *sample.settings, *_features(lines, hashed=hashed), *split]) + "\n", remarks


def _declared(names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Names without the types in them, and these types, if all names have one: ``user_id:token``."""
    parts = {name: ATOMIC.fullmatch(name) for name in names}
    if not all(parts.values()):
        return {name: name for name in names}, {}
    return {n: part[1] for n, part in parts.items() if part}, {n: part[2] for n, part in parts.items() if part}


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


def _features(lines: Sequence[Line], *, hashed: bool) -> list[str]:
    """The sections of features."""
    dense, categorical, unused, lists = (
        [line.text for line in lines if line.section == section]
        for section in ("dense", "categorical", "unused", "list")
    )
    if lists:
        categorical = [line.removesuffix(OR_KEYS) for line in categorical]
        lists = ["[list]  # longest: as many values as the longest list of these rows has", *lists]
        if hashed and categorical:
            reason = "# Training cannot read lists and keys together yet. To have lists, leave out hash = true above."
            lists = [reason, *(f"# {line}" for line in lists)]
        lists = ["", *lists]
    return ["", "[dense]", *dense, "", "[categorical]", *categorical, *unused, *lists]


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
    rows = pa.table(list(map(_whole, columns)), names)
    return Sample(rows, [], rows.num_rows == total)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else usual(column)


def _whole(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats that are all whole as integers: ids become floats where pandas finds some of them missing."""
    if not pa.types.is_floating(column.type):
        return column
    values = column.to_numpy()
    there = ~np.isnan(values)
    if not there.any() or np.any(np.abs(values[there]) >= EXACT) or np.any(values[there] % 1):
        return column
    return pa.chunked_array([pa.array(np.where(there, values, 0).astype(np.int64), mask=~there)])


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
    try:
        texts = arrow_csv.read_csv(
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
                null_values=[""], strings_can_be_null=True, column_types=dict.fromkeys(names, pa.binary())
            ),
        )
    except pa.ArrowInvalid as error:
        raise DataError(f"{source.path}: no schema can be guessed: {error}; write one by hand") from error
    columns, missing = _typed([column.combine_chunks() for column in texts.columns])
    if missing:
        where = "; ".join(f"{value} in {some([names[c] for c in of], 3)}" for value, of in missing.items())
        settings.append(f"missing = [{', '.join(map(quoted, ['', *missing]))}]  # {where}")
    return Sample(pa.table(columns, names), settings, whole)


def _typed(texts: Sequence[pa.Array]) -> tuple[list[pa.Array], dict[str, list[int]]]:
    """Columns of bytes as what they are, null where missing; and the columns with each text that means so."""
    found: dict[str, list[int]] = {}
    clear = set(MISSING) - set(MISSING_WORDS)
    columns = []
    for number, column in enumerate(texts):
        marked = pc.is_in(column, pa.array(MISSING, pa.binary()))
        words = [value.decode() for value in pc.unique(column.filter(marked)).to_pylist()]
        for value in words:
            found.setdefault(value, []).append(number)
        columns.append(_read(pc.if_else(marked, None, column)))
        if columns[-1] is not None:
            clear.update(words)
    missing = {value: found[value] for value in MISSING if value in found and value in clear}
    of_text = pa.array(list(missing), pa.binary())
    for number, column in enumerate(texts):
        if columns[number] is None:
            columns[number] = _text(pc.if_else(pc.is_in(column, of_text), None, column))
    return columns, missing


def _read(texts: pa.Array) -> pa.Array | None:
    """Texts as the preparation reads integers, numbers or times; None if they are none of these."""
    there = texts.drop_null()
    for read, other in READERS if len(there) else ():
        try:
            read(there[:TRIED_ROWS])
            values = read(texts)
        except pa.ArrowInvalid:
            continue
        return None if other and pc.any(pc.match_substring_regex(texts, other)).as_py() else values
    return None


def _text(column: pa.Array) -> pa.Array:
    """Bytes as strings, if they are; nothing if all are missing."""
    if column.null_count == len(column):
        return pa.nulls(len(column))
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return column


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


def _column(name: str, column: pa.ChunkedArray, declared: str, *, hashed: bool) -> Line:
    """The line of a column, of the type that its name has ``declared``, if any."""
    kind, key = column.type, name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)
    if reason := _useless(name, column, declared):
        return Line("unused", f"# {key}: {reason}left out")
    if pa.types.is_nested(kind) or declared == "token_seq":
        return Line("list", _list(key, column, "" if pa.types.is_nested(kind) else " "))
    if kind in TEXTS and not declared and (separator := separator_of(column[:LIST_ROWS])):
        return Line("list", _list(key, column, separator))
    values = pc.count_distinct(column).as_py()
    scaled = "; takes a pass over the files, none and log1p do not" * hashed
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        ids = "; beyond 2^53: if these are ids, they are strings of [categorical]"
        scaled += ids * (pc.max(pc.abs(column.cast(pa.float64()))).as_py() >= EXACT)
        return Line("dense", f'{key} = "standardize"  # {values:,} values{scaled}')
    integer, plain = pa.types.is_integer(kind), ATOMIC.sub(r"\1", name.lower())
    if integer and (declared == "float" or (not declared and values > FEW and not IDS.search(plain))):
        positive = pc.min(column).as_py() >= 0
        line = f'{key} = "{"log1p" if positive else "standardize"}"  # {values:,} values{scaled * (not positive)}'
        return Line("dense", _unless_row_numbers(line, column))
    rare = ", hash = true" if hashed else ", min_count = 2" if values > MANY else ""
    more = _of_numbers(column.drop_null()) if kind in TEXTS else ""
    kind_name = "integer" if integer or pa.types.is_boolean(kind) else "string"
    line = f'{key} = {{ type = "{kind_name}"{rare} }}  # {values:,} values'
    if not more:
        line = _unless_row_numbers(line, column)
    return Line("categorical", line + ("" if hashed or not rare else OR_KEYS) * (line[0] != "#") + more)


def _useless(name: str, column: pa.ChunkedArray, declared: str) -> str:
    """Why a column is no feature, with what to write behind it; empty if it may be one."""
    kind = column.type
    listed = are_lists(kind) and (pa.types.is_integer(kind.value_type) or kind.value_type in TEXTS)
    if not name.strip():
        return "has no name, "
    if column.null_count == len(column) or pa.types.is_temporal(kind) or (pa.types.is_nested(kind) and not listed):
        return f"{kind}, "
    if declared == "float_seq":
        return "lists of numbers, which are no ids; "
    if not listed and len(column) > 1 and pc.count_distinct(column, mode="all").as_py() == 1:
        return "the same in all rows seen, which says nothing; "
    return ""


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


def _partition(name: str, values: set[str]) -> Line:
    """The line of a column that is in the names of folders."""
    if len(values) == 1:
        return Line("unused", f"# {quoted(name)}: the same in all folders {name}=..., left out")
    line = f'{quoted(name)} = {{ type = "string" }}  # {len(values):,} folders {name}=...'
    if all(DAY.fullmatch(value) for value in values):
        return Line("unused", f"# {line}, dates that rows to score will not have: left out")
    return Line("categorical", line)


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
        lists = pc.split_pattern(lists.cast(pa.string()), pattern=separator)
    values = pc.list_flatten(lists).drop_null()
    if text := values.type in TEXTS:
        values = values.filter(pc.not_equal(values, ""))  # missing ones are left out
    whole = not text or bool(pc.all(pc.match_substring_regex(values, r"^(0|-?[1-9]\d{0,17})$")).as_py())
    distinct = pc.count_distinct(values).as_py()
    settings = [f'type = "{"integer" if whole else "string"}"', f"longest = {pc.max(pc.list_value_length(lists))}"]
    settings += [f"separator = {quoted(separator)}"] * bool(separator) + ["min_count = 2"] * (distinct > MANY)
    return f"{key} = {{ {', '.join(settings)} }}  # {distinct:,} values"
