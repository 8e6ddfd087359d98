"""Text as people export it: blank lines, many bad rows, days prepared one by one with the schema of the first."""

import random

import pytest
from test_prepare_table import BY_TIME, COLUMNS, NAMES, ROWS, SMALL, load, prepare, same, write_csv

from ssmpi.data.schema import read_manifest

HEAD = ",".join(NAMES)
DATES = """
label = "click"
time = "at"
[categorical]
user = "integer"
[split]
by = "time"
train_until = 2026-03-08
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_blank_lines_are_no_rows(tmp_path, end, capsys):
    """They are not scored either, so that scores and the rows of other readers agree."""
    draw, lines = random.Random(4), [HEAD]
    for row in ROWS:
        lines += [""] * draw.choice([0, 0, 0, 1, 2]) + [",".join(row)]
    (tmp_path / "blank.csv").write_bytes((end.join([*lines, "", ""]) + end).encode())
    file = write_csv(tmp_path / "plain.csv")
    for name in ("blank", "plain"):
        assert prepare(tmp_path, tmp_path / f"{name}.csv", COLUMNS + BY_TIME, *SMALL, "--no-shuffle", name=name) == 0
    same(load(tmp_path / "blank"), load(tmp_path / "plain"))
    file.write_bytes((tmp_path / "blank.csv").read_bytes().replace(end.encode() + b"7,", end.encode() + b"7;,"))
    assert prepare(tmp_path, file, COLUMNS + BY_TIME, name="bad") == 2
    line = next(n for n, row in enumerate(lines, 1) if row.startswith("7,"))
    assert f"plain.csv:{line}: user is '7;', not an integer" in capsys.readouterr().err


def test_a_blank_line_of_one_column_is_a_missing_value(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("item\na\n\nb\n")
    assert prepare(tmp_path, file, '[categorical]\nitem = "string"\n', "--split", "none", "--fit-on", "all") == 0
    assert read_manifest(tmp_path / "out").splits["test"].rows == 3


def test_many_bad_rows_leave_out_what_they_say(tmp_path, capsys):
    """Of two causes that pyarrow finds, and one that it does not."""
    draw, lines, kept = random.Random(5), [HEAD], []
    causes = {"number of fields": lambda row: row[:-1], "value of price": lambda row: [*row[:3], "NULL", *row[4:]]}
    causes["label"] = lambda row: [*row[:5], "", *row[6:]]
    counts = dict.fromkeys(causes, 0)
    for row in ROWS:
        cause = draw.choice([*causes, None])
        if cause:
            counts[cause] += 1
            row = causes[cause](row)
        else:
            kept.append(row)
        lines.append(",".join(row))
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "kept.csv").write_text("\n".join([HEAD, *map(",".join, kept)]) + "\n")
    for name in ("a", "kept"):
        more = (*SMALL, "--no-shuffle", "--on-bad-row", "skip")
        assert prepare(tmp_path, tmp_path / f"{name}.csv", COLUMNS + BY_TIME, *more, name=name) == 0
    same(load(tmp_path / "a"), load(tmp_path / "kept"))
    told = capsys.readouterr().out
    for cause, count in counts.items():
        assert f"skipped {count} rows: {cause}; the first is {tmp_path / 'a.csv'}:" in told


def test_nothing_but_bad_rows_says_what_is_wrong_with_them(tmp_path, capsys):
    (tmp_path / "a.csv").write_text(HEAD + "\n" + "a,b\n" * 9)
    assert prepare(tmp_path, tmp_path / "a.csv", COLUMNS + BY_TIME, "--on-bad-row", "skip") == 2
    said = "not one good row in the raw files: skipped 9 rows: number of fields; the first is "
    assert f"error: {said}{tmp_path / 'a.csv'}:2\n" in capsys.readouterr().err


def test_a_later_day_needs_no_split_by_time(tmp_path, capsys):
    """All rows in one split, in any order; rows in shares are in that of time, which is dates."""
    times = [f"2026-03-{1 + n // 10:02} 0{n % 10}:00:00" for n in (*range(90), 3, 2)]
    (tmp_path / "a.csv").write_text(
        "at,user,click\n" + "".join(f"{at},{n % 7},{n % 2}\n" for n, at in enumerate(times))
    )
    assert prepare(tmp_path, tmp_path / "a.csv", DATES, name="first") == 0
    assert [split.rows for split in read_manifest(tmp_path / "first").splits.values()] == [72, 20]
    assert prepare(tmp_path, tmp_path / "a.csv", DATES, "--split", "none", name="later") == 0
    assert [split.rows for split in read_manifest(tmp_path / "later").splits.values()] == [92]
    assert prepare(tmp_path, tmp_path / "a.csv", DATES, "--split", "0.5,0.5", name="halves") == 2
    told = capsys.readouterr().err
    assert (
        "a.csv:92: at is 2026-03-01T03:00:00.000000, after a row of 2026-03-09T09:00:00.000000, but the split" in told
    )
