"""``ssmpi-prepare table --guess`` on messy files: what it writes is what the preparation then reads."""

import re
import tomllib

import pytest
from strength import one_at_a_time

from data_prep.cli import main
from data_prep.table import guess as guessing
from data_prep.table.schema import read_schema
from ssmpi.data.schema import read_manifest

ROWS = 400


def guess(tmp_path, columns, *options, rows=ROWS, name="a.csv", prepared=True):
    """The text of a schema guessed from columns, each a function of the row's number; it prepares the file."""
    file, path = tmp_path / name, tmp_path / "schema.toml"
    lines = [columns, *({c: make(i) for c, make in columns.items()}.values() for i in range(rows))]
    file.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    assert main(["table", "--guess", "--schema", str(path), str(file), *options]) == 0
    if prepared:
        assert main(["table", "--schema", str(path), str(file), "--output", str(tmp_path / "out")]) == 0
        assert sum(split.rows for split in read_manifest(tmp_path / "out").splits.values()) == rows
    return path.read_text()


def sometimes(missing, make):
    """``missing`` in 5 % of the rows."""
    return lambda i: missing if i % 20 == 7 else make(i)


BASE = {"click": lambda i: i % 2, "user": lambda i: f"u{i % 9}"}


MISSING = ["NULL", "null", "NA", "N/A", "NaN", "nan", "None", "\\N", "#N/A", "-"]
VALUES = [lambda i: i / 8, lambda i: i, lambda i: f"2026-03-{1 + i % 28:02}"]


@pytest.mark.parametrize(("missing", "make"), one_at_a_time(MISSING, VALUES))
def test_missing_values_of_numbers_are_named(missing, make, tmp_path):
    text = guess(tmp_path, BASE | {"column": sometimes(missing, make)})
    assert tomllib.loads(text)["table"]["missing"] == ["", missing]
    assert f"# {missing} in column\n" in text


def test_missing_values_leave_ids_integers(tmp_path):
    guess(tmp_path, BASE | {"item_id": sometimes("nan", lambda i: i % 90), "a": sometimes("", lambda i: i / 8)})
    schema = read_schema(tmp_path / "schema.toml")
    assert schema.categorical["item_id"].type == "integer"
    assert list(schema.dense) == ["a"]


def test_whole_numbers_that_the_preparation_reads_as_no_integers_are_none(tmp_path):
    guess(tmp_path, BASE | {"item_id": lambda i: f"{1 + i % 90}e2"})
    assert list(read_schema(tmp_path / "schema.toml").dense) == ["item_id"]


def test_words_of_text_are_not_missing(tmp_path):
    """NA may be Namibia; NULL is no word."""
    words = BASE | {"country": sometimes("NA", lambda i: f"C{i % 5}")}
    assert "missing" not in tomllib.loads(guess(tmp_path, words))["table"]
    (tmp_path / "other").mkdir()
    text = guess(tmp_path / "other", words | {"shop": sometimes("NULL", lambda i: f"s{i % 5}")})
    assert tomllib.loads(text)["table"]["missing"] == ["", "NULL"]


def test_true_and_false_are_text(tmp_path):
    guess(tmp_path, BASE | {"mobile": lambda i: str(i % 3 == 0).lower()})
    assert read_schema(tmp_path / "schema.toml").categorical["mobile"].type == "string"


SEEN = BASE | {"seen": lambda i: f"2026-03-{1 + i // 24:02} {i % 24:02}:00:00"}


def test_dates_of_the_first_rows_are_no_split(tmp_path, monkeypatch):
    """80 % of a sample is nothing of sorted data; whoever uncomments the lines has to write dates."""
    monkeypatch.setattr(guessing, "SAMPLE_BYTES", 24 * 50)
    text = guess(tmp_path, SEEN)
    count = int(re.match("# Guessed from the first ([0-9]+) rows of a.csv:", text)[1])
    assert 40 < count < 60
    last = count - 1
    assert (
        f"\n# train_until =  # a date; the first rows are from 2026-03-01T00:00:00 to 2026-03-0{1 + last // 24}T"
        in text
    )
    assert text.endswith("\n# validation_until = \n")


BY_TIME = '\nby = "time"\ntrain_until = 2026-03-14T08:00:00\nvalidation_until = 2026-03-16T00:00:00\n# by = "rows"\n'


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_are_split_by_the_dates_of_all(kind, tmp_path, monkeypatch):
    from pyarrow import csv, parquet

    guess(tmp_path, SEEN)
    assert [split.rows for split in read_manifest(tmp_path / "out").splits.values()] == [320, 40, 40]
    file, path = tmp_path / f"a.{kind}", tmp_path / "again.toml"
    if kind == "parquet":
        parquet.write_table(csv.read_csv(tmp_path / "a.csv"), file)
    monkeypatch.setattr(guessing, "BATCH_ROWS", ROWS // 2)
    assert main(["table", "--guess", "--schema", str(path), str(file)]) == 0
    text = path.read_text()
    assert text.startswith(f"# Guessed from all 400 rows of a.{kind}: ")
    assert BY_TIME in text
    path.unlink()
    monkeypatch.setattr(guessing, "SAMPLE_BYTES", 100)
    assert main(["table", "--guess", "--schema", str(path), str(file)]) == 0
    assert "# train_until =  # a date; " in path.read_text(), "there are other rows"
    path.unlink()
    monkeypatch.undo()
    (tmp_path / "b.csv").write_text((tmp_path / "a.csv").read_text())
    assert main(["table", "--guess", "--schema", str(path), str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]) == 0
    assert "# train_until =  # a date; " in path.read_text(), "there is another file"


def test_rows_without_a_time_are_not_split_by_it(tmp_path):
    """They would be bad ones."""
    text = guess(tmp_path, BASE | {"seen": sometimes("", SEEN["seen"])})
    assert tomllib.loads(text)["split"]["by"] == "rows"
    assert '\n# by = "time"  # instead of both\n# train_until = 2026-03-1' in text


@pytest.mark.parametrize("dates", [("birthday",), ("seen", "changed")])
def test_dates_that_may_not_be_those_of_the_rows_are_offered(dates, tmp_path):
    text = guess(tmp_path, BASE | dict.fromkeys(dates, SEEN["seen"]))
    assert tomllib.loads(text)["split"]["by"] == "rows"
    assert f'\n# time = "{dates[0]}"  # then split by it\n' in text


def test_dates_may_have_parts_of_seconds(tmp_path):
    text = guess(tmp_path, BASE | {"seen": lambda i: f"2026-03-01 00:00:{i % 60:02}.25"})
    assert f"\ntrain_until = 2026-03-01T00:00:{sorted(i % 60 for i in range(ROWS))[320]}\n" in text


@pytest.mark.parametrize(("name", "values", "rule"), [
    ("clicked", ("yes", "no"), "clicked == 'yes'"),
    ("label", ("False", "True"), "label == 'True'"),
    ("conversion", ("none yet", "converted"), "conversion == 'converted'"),
    ("Target", ("0", "1"), "Target"),
    ("is_click", ("0.0", "1.0"), "is_click"),
])  # fmt: skip
def test_a_label_of_two_values_is_a_rule(name, values, rule, tmp_path):
    text = guess(tmp_path, {name: lambda i: values[i % 4 == 0], "user": lambda i: f"u{i % 9}"})
    assert tomllib.loads(text)["label"] == rule
    positive = values.index(rule.split("'")[1]) if "'" in rule else 1
    share = 0.25 if positive else 0.75
    manifest = read_manifest(tmp_path / "out")
    assert manifest.splits["train"].positives == share * 320


def test_a_label_whose_values_do_not_say_which_is_positive_is_asked_for(tmp_path):
    """It is no feature either."""
    text = guess(tmp_path, {"target": lambda i: "AB"[i % 2], "user": lambda i: f"u{i % 9}"})
    line = """# label = "target == 'A'"  # else "B": say which of them is 1\n"""
    assert line in text
    schema = tmp_path / "schema.toml"
    schema.write_text(text.replace(line, line[2:]))
    out = tmp_path / "labelled"
    assert main(["table", "--schema", str(schema), str(tmp_path / "a.csv"), "--output", str(out)]) == 0
    assert list(read_schema(schema).categorical) == ["user"]


def test_a_missing_label_is_a_bad_row(tmp_path, capsys):
    columns = BASE | {"click": sometimes("NULL", lambda i: "yn"[i % 2]), "price": sometimes("NULL", float)}
    text = guess(tmp_path, columns, prepared=False)
    assert "  # missing in 20 rows, which are bad ones: --on-bad-row skip\n" in text
    command = ["table", "--schema", str(tmp_path / "schema.toml"), str(tmp_path / "a.csv"), "-o", str(tmp_path / "out")]
    assert main(command) == 2
    assert main([*command, "--on-bad-row", "skip"]) == 0
    assert sum(split.rows for split in read_manifest(tmp_path / "out").splits.values()) == ROWS - 20


def test_without_a_label_both_kinds_of_rules_are_shown(tmp_path):
    text = guess(tmp_path, {"user": lambda i: f"u{i % 9}"}, rows=60)
    assert """\n# label = "..."  # a column of 0 and 1, or a rule: rating >= 4, clicked == 'yes'\n""" in text


def test_a_label_of_text_is_told_to_be_a_rule(tmp_path, capsys):
    text = guess(tmp_path, BASE | {"click": lambda i: ("no", "yes")[i % 2]})
    (tmp_path / "schema.toml").write_text(text.replace("""label = "click == 'yes'\"""", 'label = "click"'))
    assert main(
        ["table", "--schema", str(tmp_path / "schema.toml"), str(tmp_path / "a.csv"), "-o", str(tmp_path / "b")]
    )
    said = (
        """click is 'no', not a number; repair or remove the row, or write a rule such as label = "click == 'yes'\""""
    )
    assert said in capsys.readouterr().err


def test_categories_of_parquet_are_guessed_from_their_values(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    values = [str(("no", "yes")[i % 2]) for i in range(ROWS)]
    columns = {"clicked": pa.array(values).dictionary_encode(), "shop": pa.array(["s", None] * 200).dictionary_encode()}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert main(["table", "--guess", "--schema", str(tmp_path / "s.toml"), str(tmp_path / "a.parquet")]) == 0
    found = read_schema(tmp_path / "s.toml")
    assert (found.label.column, found.label.value) == ("clicked", "yes")
    assert found.categorical["shop"].type == "string"
    assert (
        main(["table", "--schema", str(tmp_path / "s.toml"), str(tmp_path / "a.parquet"), "-o", str(tmp_path / "o")])
        == 0
    )


GENRES = {"genres": lambda i: "|".join("abcd"[: 1 + i % 4])}


def test_keys_leave_lists_out_and_lists_alone_stay(tmp_path):
    """Training refuses both together; either half of the schema prepares."""
    text = guess(tmp_path, BASE | GENRES, "--hash")
    assert "\n# Training cannot read lists and keys together yet." in text
    assert read_manifest(tmp_path / "out").features.keyed == ("user",)
    kept = text.replace(", hash = true", "").replace("# [list]", "[list]").replace("# genres", "genres")
    (tmp_path / "schema.toml").write_text(kept)
    command = ["table", "--schema", str(tmp_path / "schema.toml"), str(tmp_path / "a.csv")]
    assert main([*command, "-o", str(tmp_path / "lists")]) == 0
    assert list(read_manifest(tmp_path / "lists").features.lists) == ["genres"]
    (tmp_path / "alone").mkdir()
    guess(tmp_path / "alone", {"click": BASE["click"]} | GENRES, "--hash")
    assert list(read_schema(tmp_path / "alone" / "schema.toml").lists) == ["genres"]


def test_keys_are_not_offered_beside_lists(tmp_path):
    many = BASE | {"item": lambda i: f"i{min(i, 10_050)}"}
    offer = "; or hash = true"
    assert offer in guess(tmp_path, many, rows=10_100)
    (tmp_path / "lists").mkdir()
    text = guess(tmp_path / "lists", many | GENRES, rows=10_100)
    assert offer not in text
    assert "\ngenres = { " in text


def test_a_column_of_one_value_is_left_out(tmp_path):
    same = {"country": lambda i: "DE", "version": lambda i: 3, "rate": lambda i: 0.5, "tags": lambda i: "a|b"}
    text = guess(tmp_path, BASE | same | {"marked": lambda i: "x" * (i % 2)})
    for name in same:
        assert f"\n# {name}: the same in all rows seen, which says nothing; left out\n" in text
    schema = read_schema(tmp_path / "schema.toml")
    assert (list(schema.categorical), schema.dense, schema.lists) == (["user", "marked"], {}, {})


@pytest.mark.parametrize("form", ["{:,.2f}", "{:,}", "-{:,.1f}", "${:,.2f}", "{:,.0f} €", "{}%"])
def test_numbers_with_separators_are_pointed_out(form, tmp_path):
    text = guess(tmp_path, BASE | {"amount": lambda i: '"' + form.format(i * 537.25) + '"'})
    assert re.search("\namount = .*; these look like numbers with separators, which are read as text", text)


@pytest.mark.parametrize("make", [lambda i: f"item-{i}", lambda i: f"10.0.{i % 256}.{i}", lambda i: f"{i}:30"])
def test_other_texts_with_digits_are_no_numbers(make, tmp_path):
    assert "look like numbers" not in guess(tmp_path, BASE | {"column": make})


def test_a_word_among_numbers_is_pointed_out(tmp_path):
    text = guess(tmp_path, BASE | {"size": sometimes("unknown", lambda i: i % 90)})
    said = '{ type = "string" }  # 91 values; numbers, but for "unknown": does it mean a missing one (table.missing)?'
    assert f"\nsize = {said}\n" in text


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["table", "--guess", "--schema", str(tmp_path / "s.toml"), str(tmp_path / "a.csv")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/a.csv: no such file; check the path\n"
    assert main(["table", "--guess", "--schema", str(tmp_path / "s.toml"), str(tmp_path)]) == 2
    assert "day_" not in capsys.readouterr().err


def test_a_header_may_have_a_column_without_a_name(tmp_path):
    """pandas writes its index so."""
    text = guess(tmp_path, {"": lambda i: i} | BASE)
    assert "columns" not in tomllib.loads(text)["table"]
    assert '\n# "": has no name, left out\n' in text
    assert read_schema(tmp_path / "schema.toml").kinds().keys() == {"click", "user"}


def test_two_columns_of_one_name_are_refused(tmp_path, capsys):
    file = tmp_path / "a.csv"
    file.write_text("click,a,a\n1,2,3\n0,3,4\n")
    assert main(["table", "--guess", "--schema", str(tmp_path / "s.toml"), str(file)]) == 2
    assert capsys.readouterr().err == f"error: {file}: two columns 'a'; rename one\n"


def test_ids_beyond_64_bits_are_strings(tmp_path):
    """Arrow takes them for float64."""
    guess(tmp_path, BASE | {"session": lambda i: 2**63 + i % 90, "price": lambda i: i / 8})
    schema = read_schema(tmp_path / "schema.toml")
    assert (schema.categorical["session"].type, list(schema.dense)) == ("string", ["price"])


def test_lists_of_parquet_need_no_separator_whatever_their_names_declare(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"click:float": [0.0, 1.0] * 30, "tags:token_seq": [["a", "b"], ["c"]] * 30}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert main(["table", "--guess", "--schema", str(tmp_path / "s.toml"), str(tmp_path / "a.parquet")]) == 0
    assert '\n"tags:token_seq" = { type = "string", longest = 2 }  # 3 values\n' in (tmp_path / "s.toml").read_text()
