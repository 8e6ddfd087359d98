"""Numbers and times of Parquet, whatever their types: what fits is read, what does not is a bad row."""

from decimal import Decimal

import numpy as np
import pytest
from test_prepare_table import load, prepare

from data_prep.cli import main
from ssmpi.data.schema import read_manifest

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

ROWS, BAD = 300, 5
COLUMNS = 'label = "label"\n{time}[dense]\n{dense}[categorical]\nuser = {{ type = "string" }}\n{ids}{split}'
TIME = '[split]\nby = "time"\ntrain_until = {}\n'


def write(path, column, *, end="parquet"):
    users = [str(i % 7) for i in range(ROWS)]
    table = pa.table({"label": [i % 2 for i in range(ROWS)], "user": users, "value": column})
    file = path / f"a.{end}"
    if end == "csv":
        from pyarrow import csv

        csv.write_csv(table, file)
    else:
        parquet.write_table(table, file)
    return file


def schema(*, time="", dense="", ids="", split=""):
    return COLUMNS.format(time=time, dense=dense, ids=ids, split=split)


DENSE, IDS = schema(dense='value = "none"\n'), schema(ids='value = { type = "integer" }\n')


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_large_numbers_are_rounded_as_those_of_text(kind, tmp_path):
    values = [2**62 + 3**i if i < 30 else i for i in range(ROWS)]
    found = []
    for end in ("parquet", "csv"):
        assert prepare(tmp_path, write(tmp_path, pa.array(values, kind), end=end), DENSE, name=end) == 0
        found.append(np.concatenate([dense for _, dense, _ in load(tmp_path / end).values()]))
    np.testing.assert_array_equal(np.sort(found[0], axis=None), np.sort(np.array(values).astype(np.float32)))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("end", ["parquet", "csv"])
def test_a_time_in_nanoseconds_may_be_an_id_too(end, tmp_path):
    file = write(tmp_path, pa.array([2**60 + 1001 * i for i in range(ROWS)]), end=end)
    columns = schema(time='time = "value"\n', ids='value = { type = "integer" }\n', split=TIME.format(2**60 + 200_000))
    assert prepare(tmp_path, file, columns) == 0
    assert read_manifest(tmp_path / "out").splits["train"].rows == 200


@pytest.mark.parametrize("column", [IDS, IDS.replace('"integer"', '"integer", hash = true')])
def test_unsigned_integers_of_64_bits_are_ids(column, tmp_path):
    values = [2**64 - 1 - i % 3 if i % 2 else i % 3 for i in range(ROWS)]
    assert prepare(tmp_path, write(tmp_path, pa.array(values, pa.uint64())), column, "--fit-on", "all") == 0
    manifest = read_manifest(tmp_path / "out")
    if manifest.features.keyed:
        assert sum(split.rows for split in manifest.splits.values()) == ROWS
    else:
        assert manifest.cardinalities[1] == 2 + 6


@pytest.mark.parametrize("values", [["2", "7"], ["9223372036854775807", "-5"]])
def test_splits_are_values_of_unsigned_columns_too(values, tmp_path):
    rows = [int(values[0]) if i < 200 else abs(int(values[1])) for i in range(ROWS)]
    split = f'[split]\nby = "column"\ncolumn = "value"\ntrain = [{values[0]}]\ntest = [{values[1]}, 5]\n'
    assert prepare(tmp_path, write(tmp_path, pa.array(rows, pa.uint64())), schema(split=split)) == 0
    assert {name: each.rows for name, each in read_manifest(tmp_path / "out").splits.items()} == {
        "train": 200,
        "test": 100,
    }


@pytest.mark.parametrize(
    ("start", "kind", "until"),
    [
        ("2024-01-01", pa.timestamp("ns"), "2024-01-01T00:00:00.000200"),
        ("2024-01-01", pa.timestamp("ns", "UTC"), "2024-01-01T00:00:00.000200"),
        ("2024-01-01", pa.int64(), "1704067200000200000"),
    ],
)
def test_rows_are_split_by_times_in_nanoseconds(start, kind, until, tmp_path):
    times = (np.datetime64(start, "ns") + np.arange(ROWS) * 1001).astype(np.int64)
    file = write(tmp_path, pa.array(times).cast(kind))
    assert prepare(tmp_path, file, schema(time='time = "value"\n', split=TIME.format(until))) == 0
    assert read_manifest(tmp_path / "out").splits["train"].rows == 200


def one_bad(good, bad, kind):
    return pa.array([bad if i == BAD else good(i) for i in range(ROWS)], kind)


FAR = TIME.format("2001-09-09T01:50:00")


@pytest.mark.parametrize(
    ("column", "columns", "message"),
    [
        (one_bad(float, 1.5, pa.float64()), IDS, "value is 1.5, not an integer of 64 bits"),
        (one_bad(float, 1e30, pa.float64()), IDS, "value is 1e+30, not an integer of 64 bits"),
        (one_bad(float, float("-inf"), pa.float32()), IDS, "value is -inf, not an integer of 64 bits"),
        (one_bad(Decimal, Decimal("1.5"), pa.decimal128(10, 2)), IDS, "value is 1.50, not an integer of 64 bits"),
        (
            one_bad(lambda i: 10**9 + i, 9 * 10**15, pa.timestamp("s")),
            schema(time='time = "value"\n', split=FAR),
            "not microseconds of 64 bits",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_a_bad_row(column, columns, message, tmp_path, capsys):
    file = write(tmp_path, column)
    assert prepare(tmp_path, file, columns) == 2
    said = capsys.readouterr().err
    assert f"{file}: row {BAD + 1}: " in said
    assert message in said
    assert prepare(tmp_path, file, columns, "--on-bad-row", "skip") == 0
    assert sum(split.rows for split in read_manifest(tmp_path / "out").splits.values()) == ROWS - 1


def test_missing_ids_of_floats_are_missing(tmp_path):
    values = [float(i % 5) if i % 10 else (None if i % 20 else float("nan")) for i in range(ROWS)]
    assert prepare(tmp_path, write(tmp_path, pa.array(values)), IDS, "--fit-on", "all") == 0
    ids = np.concatenate([ids for ids, *_ in load(tmp_path / "out").values()])
    assert np.count_nonzero(ids[:, 1] == 0) == ROWS // 10


def test_decimals_are_guessed_to_be_numbers(tmp_path):
    file = write(tmp_path, pa.array([Decimal(i) / 4 for i in range(ROWS)], pa.decimal128(10, 2)))
    assert main(["table", "--guess", "--schema", str(tmp_path / "guessed.toml"), str(file)]) == 0
    assert '\nvalue = "standardize"' in (tmp_path / "guessed.toml").read_text()
    assert main(["table", "--schema", str(tmp_path / "guessed.toml"), str(file), "-o", str(tmp_path / "out")]) == 0


def test_dates_that_no_calendar_has_are_not_guessed_from(tmp_path):
    file = write(tmp_path, one_bad(lambda i: 86_400_000 * i, 9 * 10**18, pa.timestamp("ms")))
    assert main(["table", "--guess", "--schema", str(tmp_path / "guessed.toml"), str(file)]) == 0
    assert "\n# train_until = 1970-08-29T00:00:00\n" in (tmp_path / "guessed.toml").read_text()
