"""Values of text as other programs write them: guessed, prepared, scored."""

import json

import numpy as np
import pytest
from test_guess import guess
from test_prepare_table import load, prepare

from data_prep.cli import main
from data_prep.table.schema import read_schema
from data_prep.table.text_values import lists_in_brackets, times_of
from ssmpi.data.schema import read_manifest

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

BASE = {"click": lambda i: i * 7 % 11 % 2, "user": lambda i: f"u{i % 9}"}


@pytest.mark.parametrize("text", [
    "2025-03-01T12:30:00Z", "2025-03-01 12:30:00 UTC", "2025-03-01T14:30:00+02:00", "2025-03-01 07:00:00-0530",
    "2025-03-01 12:30", " 2025-03-01 14:30 +02 ", "2025-03-01T12:30:00.000000999Z",
])  # fmt: skip
def test_a_time_is_an_instant(text):
    assert str(times_of(pa.array([text.encode(), None]))[0]) == "2025-03-01 12:30:00"
    assert str(times_of(pa.array([b"2025-03-01"]))[0]) == "2025-03-01 00:00:00"


@pytest.mark.parametrize("text", ["yesterday", "12:30", "2025-13-01", "2025-03-01 12:30:455", "2025-03-01 12:30 CET"])
def test_other_text_is_no_time(text):
    with pytest.raises(pa.ArrowInvalid):
        times_of(pa.array([text.encode()]))


def minute(i, zone=0):
    return f"2025-03-{1 + (i + 60 * zone) // 1440:02}T{(i + 60 * zone) // 60 % 24:02}:{i % 60:02}:00"


@pytest.mark.parametrize("offsets", [("+02:00",), (" UTC",), ("Z", "+02:00", "")])
def test_rows_are_split_by_instants(offsets, tmp_path):
    def seen(i):
        offset = offsets[i % len(offsets)]
        return minute(i, 2 * offset.startswith("+")) + offset

    text = guess(tmp_path, BASE | {"seen": seen})
    assert "\ntrain_until = 2025-03-01T05:20:00\n" in text
    assert [split.rows for split in read_manifest(tmp_path / "out").splits.values()] == [320, 40, 40]


def test_a_wrong_time_is_named_with_its_line(tmp_path, capsys):
    guess(tmp_path, BASE | {"seen": lambda i: minute(i) + "Z"})
    text = (tmp_path / "a.csv").read_text().splitlines()
    text[301] = text[301].replace("2025-03-01T05", "soon")
    (tmp_path / "b.csv").write_text("\n".join(text) + "\n")
    command = ["table", "--schema", str(tmp_path / "schema.toml"), str(tmp_path / "b.csv"), "-o", str(tmp_path / "b")]
    assert main(command) == 2
    assert f"{tmp_path}/b.csv:302: seen is 'soon:00:00Z', not a time; " in capsys.readouterr().err
    assert main([*command, "--on-bad-row", "skip"]) == 0
    assert sum(split.rows for split in read_manifest(tmp_path / "b").splits.values()) == 399


def item(i):
    return None if i % 10 == 3 else 1000 + i * 7 % 90


@pytest.mark.parametrize("trained", ["int.csv", "float.csv", "float.parquet"])
def test_ids_that_were_written_as_floats_are_the_same_ids(trained, tmp_path):
    """In training and in scoring."""
    texts = {"int.csv": "{}".format, "float.csv": "{}.0".format}
    for name, written in texts.items():
        rows = [f"{BASE['click'](i)},{'' if item(i) is None else written(item(i))},{i / 8}" for i in range(400)]
        (tmp_path / name).write_text("\n".join(["click,item_id,price", *rows]) + "\n")
    items = pa.array([item(i) for i in range(400)], pa.float64())
    labels, prices = [BASE["click"](i) for i in range(400)], [i / 8 for i in range(400)]
    parquet.write_table(pa.table({"click": labels, "item_id": items, "price": prices}), tmp_path / "float.parquet")
    path = tmp_path / "schema.toml"
    assert main(["table", "--guess", "--schema", str(path), str(tmp_path / trained)]) == 0
    assert read_schema(path).categorical["item_id"].type == "integer"
    found = []
    for name in ("int.csv", "float.csv", "float.parquet"):
        assert prepare(tmp_path, tmp_path / name, path.read_text(), "--no-shuffle", name=f"out-{name}") == 0
        found.append(np.concatenate([ids for ids, *_ in load(tmp_path / f"out-{name}").values()])[:, 0])
    np.testing.assert_array_equal(found[0] == 0, [item(i) is None for i in range(400)])
    assert len(set(found[0])) > 70
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("wrong", ["7.5", "1e3", "99999999999999999999.0"])
def test_other_floats_are_no_ids(wrong, tmp_path, capsys):
    file = tmp_path / "a.csv"
    file.write_text("click,item\n" + "1,7.0\n0,8\n" * 40 + f"1,{wrong}\n")
    assert prepare(tmp_path, file, 'label = "click"\n[categorical]\nitem = "integer"\n') == 2
    assert f"{file}:82: item is '{wrong}', not an integer; " in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["nan", "NaN"])
@pytest.mark.parametrize("end", ["csv", "parquet"])
def test_nan_in_text_is_missing_if_the_schema_says_so(missing, end, tmp_path, capsys):
    prices = [float("nan") if i == 5 else i / 8 for i in range(100)]
    file, schema = tmp_path / f"a.{end}", 'label = "click"\n[dense]\nprice = "none"\n[categorical]\nuser = "string"\n'
    if end == "csv":
        rows = (f"{i % 2},u{i % 3},{missing if i == 5 else i / 8}\n" for i in range(100))
        file.write_text("click,user,price\n" + "".join(rows))
        assert prepare(tmp_path, file, schema) == 2
        assert f"{file}:7: price is '{missing}', not a number; " in capsys.readouterr().err
        schema += f'[table]\nmissing = ["", "{missing}"]\n'
    else:
        columns = {"click": [i % 2 for i in range(100)], "user": [f"u{i % 3}" for i in range(100)], "price": prices}
        parquet.write_table(pa.table(columns), file)
    assert prepare(tmp_path, file, schema) == 0
    assert read_manifest(tmp_path / "out").provenance["missing"] == {"price": 1, "user": 0}


LISTS = {
    "[8, 23,11]": ["8", "23", "11"],
    " [ 7 12  3]": ["7", "12", "3"],
    "[7\n 12]": ["7", "12"],
    """["a, b", "c'd", "\\u00e9"]""": ["a, b", "c'd", "é"],
    """['a [x]', "it's"]""": ["a [x]", "it's"],
    "[np.int64(7), np.str_('b')]": ["7", "b"],
    "[]": [],
    "[None, 3, nan]": [None, "3", None],
    "[1 2 ... 9]": None,
    "[1, 2": None,
    "7": None,
    "[[1], [2]]": None,
}


def test_lists_in_brackets():
    found = lists_in_brackets(pa.array([text.encode() for text in LISTS])).to_pylist()
    assert [values and [value and value.decode() for value in values] for values in found] == list(LISTS.values())


WRITTEN = {
    "Python": lambda values: f'"{values}"',
    "numpy": lambda values: str(np.array(values, int)),
    "JSON of strings": lambda values: '"' + json.dumps([f"g {v}" for v in values]).replace('"', '""') + '"',
    "^": lambda values: "^".join(map(str, values)),
    "Hive": lambda values: "\x01".join(map(str, values)),
}


@pytest.mark.parametrize("writer", WRITTEN)
def test_lists_have_bare_ids(writer, tmp_path):
    lists = [[i * 7 % 30, i * 11 % 29, i * 5 % 31][: i % 4] for i in range(400)]
    guess(tmp_path, BASE | {"history": lambda i: WRITTEN[writer](lists[i])})
    column = read_schema(tmp_path / "schema.toml").lists["history"]
    assert column.type == ("string" if "strings" in writer else "integer")
    assert column.longest == 3
    distinct = {value for one in lists[:320] for value in one}
    assert read_manifest(tmp_path / "out").cardinalities[-1] == 2 + len(distinct)


def test_what_is_no_list_in_brackets_is_a_bad_row(tmp_path, capsys):
    file = tmp_path / "a.csv"
    file.write_text('click,h\n1,"[1, 2]"\n0,\n1,"[1, 2"\n')
    assert prepare(tmp_path, file, 'label = "click"\n[list]\nh = { longest = 3, separator = "[]" }\n') == 2
    assert f"{file}:4: h is '[1, 2', no list in brackets such as [7, 12]; " in capsys.readouterr().err


def test_vectors_are_no_lists(tmp_path):
    guess(tmp_path, BASE | {"vector": lambda i: f'"[{i % 7 / 8}, {i % 9 / 8}]"'})
    assert not read_schema(tmp_path / "schema.toml").lists


@pytest.mark.parametrize("make", [lambda i: f"{i * 37 % 97:05}", lambda i: "007" if i % 3 else "7"])
def test_leading_zeros_are_text(make, tmp_path):
    text = guess(tmp_path, BASE | {"zip": make})
    assert read_schema(tmp_path / "schema.toml").categorical["zip"].type == "string"
    assert "; text, since numbers have no leading zeros: 07 and 7 are two\n" in text
    assert read_manifest(tmp_path / "out").cardinalities[-1] == 2 + len({make(i) for i in range(320)})


def test_values_of_lists_keep_their_zeros(tmp_path):
    guess(tmp_path, BASE | {"codes": lambda i: "|".join(f"{i * n % 30:03}" for n in range(i % 4))})
    assert read_schema(tmp_path / "schema.toml").lists["codes"].type == "string"


def test_types_in_the_names_of_columns_are_followed(tmp_path):
    """As RecBole's files have them."""
    columns = {
        "user_id:token": lambda i: i * 7 % 90,
        "place:token": lambda i: 10**6 + i * 37 % 97,
        "rating:float": lambda i: 1 + i * 3 % 5,
        "timestamp:float": lambda i: 1.7e9 + i,
        "age:float": lambda i: i % 50,
        "tags:token_seq": lambda i: " ".join(str(i * n % 30) for n in range(1, 1 + i % 3)),
        "vector:float_seq": lambda i: f"0.5 0.{i}",
    }
    text = guess(tmp_path, columns)
    schema = read_schema(tmp_path / "schema.toml")
    assert (schema.label.column, schema.label.operator, schema.time) == ("rating:float", ">=", "timestamp:float")
    assert {name: column.type for name, column in schema.sparse.items()} == dict.fromkeys(
        ("user_id:token", "place:token", "tags:token_seq"), "integer"
    )
    assert list(schema.dense) == ["age:float"]
    assert '\n# "vector:float_seq": lists of numbers, which are no ids; left out\n' in text
    assert read_manifest(tmp_path / "out").splits["train"].rows == 320
