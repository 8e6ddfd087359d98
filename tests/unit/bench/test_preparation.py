"""``ssmpi bench prepare``: its files hold the same rows, commands come in turns, rates leave out the start."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from data_prep import cli
from data_prep.table.schema import read_schema
from ssmpi.bench import preparation
from ssmpi.bench.options import PrepareOptions
from ssmpi.runtime.errors import DataError, SettingsError


def in_process(monkeypatch):
    """``ssmpi-prepare`` and ``table_files`` without processes of their own."""
    monkeypatch.setattr(preparation.data, "prepare", lambda *words: cli.main([*map(str, words)]))
    monkeypatch.setattr(preparation, "run", lambda line: preparation.table_files.write(*map(Path, line[-3:])))


def test_all_files_have_the_same_rows(tmp_path, monkeypatch, capsys):
    in_process(monkeypatch)
    monkeypatch.setattr(preparation, "START_ROWS", 30)
    preparation.make_rows(tmp_path, "few ids", 200, tables=True)
    for part, rows in (("all", 200), ("first", 30)):
        folder = tmp_path / part / "few ids"
        lines = [line.split("\t") for line in (folder / "train.txt").read_text().splitlines()]
        head, *table = [line.split(",") for line in (folder / "train.csv").read_text().splitlines()]
        assert (len(lines), table) == (rows, lines)
        found = parquet.read_table(folder / "train.parquet")
        assert found.column_names == head
        cells = [["" if value is None else str(value) for value in column.to_pylist()] for column in found]
        assert [list(row) for row in zip(*cells, strict=True)] == lines
        schema = read_schema(folder / "schema.toml")
        assert set(head) == {schema.label.column, *schema.dense, *schema.categorical}


def test_every_block_of_text_is_a_row_group(tmp_path, monkeypatch, capsys):
    in_process(monkeypatch)
    monkeypatch.setattr(preparation.table_files, "BLOCK_BYTES", 20_000)
    preparation.make_rows(tmp_path, "4 M ids", 400, tables=True)
    folder = tmp_path / "all" / "4 M ids"
    with parquet.ParquetFile(folder / "train.parquet") as file:
        assert file.metadata.num_row_groups == -(-(folder / "train.csv").stat().st_size // 20_000)
    types = arrow_csv.ConvertOptions(
        column_types={f"C{i}": pa.string() for i in range(1, 27)}, strings_can_be_null=True
    )
    assert parquet.read_table(folder / "train.parquet") == arrow_csv.read_csv(
        folder / "train.csv", convert_options=types
    )


def test_commands_come_in_turns_and_rates_leave_out_the_start(tmp_path, monkeypatch, capsys):
    made, visits = [], []
    seconds = {"criteo": 3.0, "table CSV": 5.0, "table Parquet": 3.0}

    def visit(case, raw, output):
        visits.append((case.name, raw.name))
        whole = 1.0 if raw.name == "first" else seconds[case.name.split(",")[0]]
        return preparation.Visit(whole, whole - (0.75 if whole == 3 else 0.25), 7_000_000)

    monkeypatch.setattr(preparation, "visit", visit)
    monkeypatch.setattr(preparation, "make_rows", lambda folder, ids, rows, tables: made.append((ids, rows, tables)))
    options = PrepareOptions(folder=tmp_path / "made", rows=405_000, rounds=2, only="few")
    target = preparation.measure(options)
    names = ["criteo, few ids", "table CSV, few ids", "table Parquet, few ids"]
    assert made == [("few ids", 405_000, True)]
    assert visits[:3] == [(name, "first") for name in names]  # to compile
    assert [name for name, raw in visits[3:] if raw == "all"] == [*names, *names[1:], names[0]]
    report = json.loads(target.read_text())
    assert [case["rows_per_core_second"] for case in report["cases"]] == [200_000, 100_000, 200_000]
    assert [case["rows_per_user_second"] for case in report["cases"]] == [400_000 / 1.5, 100_000, 400_000 / 1.5]
    assert "Parquet / CSV, few ids: 2.00, of rows a user CPU second 2.67" in capsys.readouterr().out
    assert {path.name for path in options.folder.iterdir()} == {"prepare.json", "prepare.txt"}  # no rows are left


def test_a_command_is_measured_or_named(tmp_path):
    line = [sys.executable, "-c", "b = bytearray(300 << 20); b[::4096] = b[::4096]"]
    found = preparation.run(line)
    assert found.peak > 300 << 20
    assert 0 < found.user < found.seconds
    with pytest.raises(DataError, match=r"(?s)exit\('no rows'\).*: no rows"):
        preparation.run([sys.executable, "-c", "exit('no rows')"])


def test_nonsense_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="--only 'x' lets nothing through of criteo, few ids; "):
        preparation.measure(PrepareOptions(folder=tmp_path / "made", only="x"))
    with pytest.raises(SettingsError, match="--rows must be at least 100,000"):
        PrepareOptions(rows=100)
    assert not (tmp_path / "made").exists()
