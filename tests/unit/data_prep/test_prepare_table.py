"""``ssmpi-prepare table`` against an oracle in plain Python, for every kind of file, split and transform; bad input."""

import gzip
import json
import math
import random
import re
import statistics
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest

from data_prep.cli import main
from data_prep.preparation import Preparation
from data_prep.table.schema import read_schema
from ssmpi.data.schema import read_manifest

SCHEMAS = Path(__file__).parents[3] / "jobs" / "schemas"
NAMES = ["user", "item", "shop", "price", "age", "rating", "day", "fold"]
COLUMNS = """
label = "rating >= 4"
time = "day"
group = "user"
[dense]
price = "log1p"
age = {transform = "standardize"}
day = {missing = -1}
[categorical]
user = "integer"
item = {min_count = 2}
shop = {hash = 10}
"""
BY_TIME = '[split]\nby = "time"\ntrain_until = 400\nvalidation_until = 500\n'
SMALL = ("--piece-bytes", "4000", "--shard-rows", "90")


def make_rows(count=600, seed=1):
    draw, rows = random.Random(seed), []
    for day in range(count):
        item = "" if draw.random() < 0.1 else f"ïtem-{int(draw.paretovariate(0.8))}"
        age = "" if draw.random() < 0.2 else str(draw.randint(10, 90))
        price = f"{draw.random() * 100 - 3:.3f}"
        user, shop = str(draw.randint(-3, 40)), f"s{draw.randint(0, 30)}"
        rows.append([user, item, shop, price, age, str(draw.randint(1, 5)), str(day), draw.choice("abc")])
    return rows


ROWS = make_rows()


def write_csv(path, rows=ROWS, separator=",", end="\n", head=True):
    lines = [separator.join(row) for row in ([NAMES] if head else []) + rows]
    data = (end.join(lines) + end).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_parquet(path, rows=ROWS):
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"user": pa.int32(), "price": pa.float64(), "age": pa.int8(), "rating": pa.int64(), "day": pa.int64()}
    columns = {}
    for i, name in enumerate(NAMES):
        cells = pa.array([row[i] or None for row in rows])
        columns[name] = cells.cast(kinds.get(name, pa.string()))
    parquet.write_table(pa.table(columns), path, row_group_size=130)
    return path


def prepare(tmp_path, file, schema, *more, name="out"):
    path = tmp_path / f"{name}.toml"
    path.write_text(schema)
    return main(["table", "--schema", str(path), str(file), "-o", str(tmp_path / name), *more])


def load(folder):
    """By split: ids, dense, label."""
    found = {}
    for split, about in read_manifest(folder).splits.items():
        parts = []
        for entry in about.shards:
            with h5py.File(folder / entry.file) as shard:
                parts.append([shard[name][:] for name in ("ids", "dense", "label")])
        found[split] = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return found


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.h5"))}


def same(a, b):
    assert list(a) == list(b)
    for split in a:
        for x, y in zip(a[split], b[split], strict=True):
            np.testing.assert_array_equal(x, y)


def expected(rows, fitted):
    """ids (the hashed feature left out), dense, label, of ``rows``, with what ``fitted`` rows give."""
    users = Counter(int(row[0]) for row in fitted)
    numbers = {t: i + 2 for i, t in enumerate(sorted(users, key=lambda t: (-users[t], t % 2**64)))}
    items = Counter(row[1] for row in fitted if row[1])
    ages = [float(row[4]) for row in fitted if row[4]]
    mean, deviation = statistics.fmean(ages), statistics.pstdev(ages)
    dense = [
        (
            math.log1p(max(float(row[3]), 0)),
            (float(row[4]) - mean) / deviation if row[4] else 0,
            float(row[6]),
        )
        for row in rows
    ]
    frequent = {item for item, count in items.items() if count > 1}
    rare = [(0 if not row[1] else 1 if row[1] not in frequent else 2) for row in rows]
    label = np.array([int(row[5]) >= 4 for row in rows], np.uint8)
    return [numbers.get(int(row[0]), 1) for row in rows], rare, np.array(dense, np.float32), label


def test_every_value_is_the_oracles(tmp_path, capsys):
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), COLUMNS + BY_TIME, *SMALL, "--no-shuffle") == 0
    found, manifest = load(tmp_path / "out"), read_manifest(tmp_path / "out")
    assert manifest.features.sparse == ("user", "item", "shop")
    assert manifest.features.dense == ("price", "age", "day")
    assert manifest.cardinalities[2] == 12
    for split, (first, last) in {"train": (0, 400), "validation": (400, 500), "test": (500, 600)}.items():
        rows = ROWS[first:last]
        users, rare, dense, label = expected(rows, ROWS[:400])
        ids, values, labels = found[split]
        np.testing.assert_array_equal(ids[:, 0], users)
        np.testing.assert_array_equal(np.minimum(ids[:, 1], 2), rare)
        np.testing.assert_allclose(values, dense, rtol=2e-6, atol=1e-6)
        np.testing.assert_array_equal(labels, label)
        names = {}
        for row, item, shop in zip(rows, ids[:, 1], ids[:, 2], strict=True):
            assert names.setdefault(row[2], shop) == shop, "a string has one id"
            assert item < 2 or names.setdefault(row[1], item) == item
        assert ids[:, 2].min() >= 2
    assert main(["verify", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out")]) == 0
    most, count = Counter(row[0] for row in ROWS).most_common(1)[0]
    said = capsys.readouterr().out
    assert f" {most} {count / 600:.2%}" in said
    item = re.search(r"^  item .*%   (.*)$", said, re.MULTILINE)
    assert re.fullmatch(r"\d+ [\d.]+%, \d+ [\d.]+%, \d+ [\d.]+%", item[1]), "ids and shares, no hashes"
    assert said.count("Strings are stored as hashes, so their features show only ids.") == 1
    assert "\n  categorical\n    user type integer\n" in said
    assert not set("{}'") & set(said)


def test_all_kinds_of_files_give_the_same_rows(tmp_path):
    import pyarrow as pa

    write_csv(tmp_path / "a.csv")
    write_csv(tmp_path / "b.csv.gz", end="\r\n")
    with pa.CompressedOutputStream(str(tmp_path / "c.csv.zst"), "zstd") as out:
        out.write((tmp_path / "a.csv").read_bytes())
    write_csv(tmp_path / "d.tsv", separator="\t", head=False)
    write_parquet(tmp_path / "e.parquet")
    names = f'[table]\nseparator = "\\t"\ncolumns = {json.dumps(NAMES)}\n'
    for file in "a.csv", "b.csv.gz", "c.csv.zst", "d.tsv", "e.parquet":
        schema = COLUMNS + BY_TIME + names * (file == "d.tsv")
        assert prepare(tmp_path, tmp_path / file, schema, *SMALL, "--no-shuffle", name=file[0]) == 0
        same(load(tmp_path / "a"), load(tmp_path / file[0]))


SPLITS = {
    "": [480, 60, 60],
    '[split]\nby = "rows"\nshares = [0.5, 0.5]\n': [300, 300],
    '[split]\nby = "column"\ncolumn = "fold"\ntrain = ["a", "b"]\ntest = "c"\n': [
        sum(row[7] != "c" for row in ROWS),
        sum(row[7] == "c" for row in ROWS),
    ],
}


@pytest.mark.parametrize("split", SPLITS, ids=["rows", "halves", "column"])
def test_splits_have_the_rows_they_should(split, tmp_path):
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), COLUMNS + split, *SMALL) == 0
    assert [one.rows for one in read_manifest(tmp_path / "out").splits.values()] == SPLITS[split]
    if not split:
        ids, dense, label = load(tmp_path / "out")["train"]
        users, _, wanted, labels = expected(ROWS[:480], ROWS[:480])
        order, truth = np.argsort(dense[:, 2]), np.argsort(wanted[:, 2])  # by day: rows were shuffled
        np.testing.assert_array_equal(ids[order, 0], np.array(users)[truth])
        np.testing.assert_allclose(dense[order], wanted[truth], rtol=2e-6, atol=1e-6)
        np.testing.assert_array_equal(label[order], labels[truth])


def test_what_is_after_the_training_rows_is_the_test(tmp_path):
    rule = '[split]\nby = "time"\ntrain_until = 400\n'
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), COLUMNS + rule) == 0
    splits = read_manifest(tmp_path / "out").splits
    assert {name: split.rows for name, split in splits.items()} == {"train": 400, "test": 200}


def test_a_columns_own_minimum_count_goes_before_that_of_the_command(tmp_path):
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), COLUMNS + BY_TIME, "--min-count", "8") == 0
    users, items = (Counter(row[column] for row in ROWS[:400]) for column in (0, 1))
    del items[""]
    least = (sum(count >= 8 for count in users.values()), sum(count >= 2 for count in items.values()))
    assert read_manifest(tmp_path / "out").cardinalities[:2] == tuple(2 + number for number in least)


def test_a_value_for_missing_ones_is_transformed_as_others_are(tmp_path):
    columns = COLUMNS.replace('{transform = "standardize"}', '{transform = "standardize", missing = 30}') + BY_TIME
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), columns, "--no-shuffle") == 0
    ages = [float(row[4]) for row in ROWS[:400] if row[4]]
    wanted = (30 - statistics.fmean(ages)) / statistics.pstdev(ages)
    missing = [not row[4] for row in ROWS[:400]]
    np.testing.assert_allclose(load(tmp_path / "out")["train"][1][missing, 1], wanted, rtol=1e-5)


def test_rows_of_very_many_files_are_split_at_random(tmp_path):
    """Whose numbers, of file, piece and row, have 64 bits."""
    import pyarrow as pa

    from data_prep.table.row_builder import RowBuilder, RowOrigin

    (tmp_path / "s.toml").write_text('[categorical]\nx = "integer"\n[split]\nby = "random"\n')
    builder = RowBuilder(read_schema(tmp_path / "s.toml"), 0, False)
    splits = [
        builder.build({"x": pa.array(np.zeros(2_000, np.int64))}, 2_000, RowOrigin(source, 0))[0].split
        for source in (0, 1 << 15, 1 << 16)
    ]
    for split in splits:
        np.testing.assert_allclose(np.bincount(split) / len(split), (0.8, 0.1, 0.1), atol=0.03)
    assert not np.array_equal(*splits[:2])


def test_a_random_split_follows_the_seed_alone(tmp_path):
    file, schema = write_csv(tmp_path / "a.csv"), COLUMNS + '[split]\nby = "random"\nshares = [0.72, 0.18, 0.1]\n'
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert prepare(tmp_path, file, schema, *SMALL, "--seed", str(seed), name=name) == 0
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert content(tmp_path / "a") != content(tmp_path / "c")
    days = [dense[:, 2] for _, dense, _ in load(tmp_path / "a").values()]
    assert sorted(np.concatenate(days)) == list(range(600)), "each row is in one split"
    assert all(abs(len(some) - 600 * share) < 60 for some, share in zip(days, (0.72, 0.18, 0.1), strict=True))


@pytest.mark.parametrize("step", ["fit_vocabulary", "scatter", "write_shards"])
def test_a_killed_preparation_is_resumed(step, tmp_path, monkeypatch):
    file = write_csv(tmp_path / "a.csv.gz")
    assert prepare(tmp_path, file, COLUMNS, *SMALL, name="a") == 0
    with monkeypatch.context() as patch:
        patch.setattr(f"data_prep.passes.{step}", lambda *unused: exit("killed"))
        with pytest.raises(SystemExit):
            prepare(tmp_path, file, COLUMNS, *SMALL)
    assert (tmp_path / "out" / ".prepare").is_dir()
    assert prepare(tmp_path, file, COLUMNS, *SMALL) == 0
    assert content(tmp_path / "out") == content(tmp_path / "a")


@pytest.mark.parametrize("step", ["fit_vocabulary", "scatter"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_a_killed_preparation_of_a_split_by_rows_is_resumed(write, step, known, tmp_path, monkeypatch):
    """Also one that had read all rows without counting any, as earlier versions did."""
    file = write(tmp_path / ("a.parquet" if write is write_parquet else "a.csv"))
    assert prepare(tmp_path, file, COLUMNS, *SMALL, name="a") == 0
    with monkeypatch.context() as patch:
        patch.setattr(f"data_prep.passes.{step}", lambda *unused: exit("killed"))
        if not known:
            patch.setattr(Preparation, "counts_rows_first", False)
        with pytest.raises(SystemExit):
            prepare(tmp_path, file, COLUMNS, *SMALL)
    assert prepare(tmp_path, file, COLUMNS, *SMALL) == 0
    assert content(tmp_path / "out") == content(tmp_path / "a")


def test_bad_rows_are_left_out_and_named(tmp_path, capsys):
    bad = [["1", "x"], ["1", 'a"b\n', *ROWS[0][2:]], ["ten", *ROWS[0][1:]], [*ROWS[0][:5], "", *ROWS[0][6:]]]
    rows = [*ROWS[:100], bad[0], *ROWS[100:200], bad[2], *ROWS[200:300], bad[3], *ROWS[300:]]
    write_csv(tmp_path / "good.csv")
    write_csv(tmp_path / "bad.csv", rows)
    assert prepare(tmp_path, tmp_path / "good.csv", COLUMNS + BY_TIME, "--no-shuffle", name="good") == 0
    capsys.readouterr()
    assert prepare(tmp_path, tmp_path / "bad.csv", COLUMNS + BY_TIME, "--no-shuffle", "--on-bad-row", "skip") == 0
    said = capsys.readouterr().out
    for text in (
        f"number of fields; the first is {tmp_path / 'bad.csv'}:102",
        f"value of user; the first is {tmp_path / 'bad.csv'}:203",
        f"label; the first is {tmp_path / 'bad.csv'}:304",
    ):
        assert text in said
    same(load(tmp_path / "good"), load(tmp_path / "out"))


def change(row, column, value):
    return [
        *ROWS[:row],
        [value if name == column else v for name, v in zip(NAMES, ROWS[row], strict=True)],
        *ROWS[row + 1 :],
    ]


def cell(column, value, more=""):
    return lambda tmp_path: (write_csv(tmp_path / "a.csv", change(300, column, value)), COLUMNS + more)


def settings(old, new, more=BY_TIME):
    return lambda tmp_path: (write_csv(tmp_path / "a.csv"), COLUMNS.replace(old, new) + more)


def parquet(rows, old="", new=""):
    return lambda tmp_path: (write_parquet(tmp_path / "a.parquet", rows), COLUMNS.replace(old, new))


def without_ages(tmp_path):
    return write_csv(tmp_path / "a.csv", [[*row[:4], "", *row[5:]] for row in ROWS]), COLUMNS


def raw(data, name="a.csv", more=BY_TIME):
    def make(tmp_path):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name, COLUMNS + more

    return make


FOLDS = '[split]\nby = "column"\ncolumn = "fold"\ntrain = ["a", "b", "c"]'
HEAD = ",".join(NAMES).encode() + b"\n"
WRONG = [
    (cell("user", "anna"), "a.csv:302: user is 'anna', not an integer"),
    (cell("user", "9" * 20), "a.csv:302: user is '99999999999999999999', not an integer"),
    (cell("price", "cheap"), "a.csv:302: price is 'cheap', not a number"),
    (cell("price", "inf"), "a.csv:302: price is inf, beyond float32"),
    (cell("rating", "good"), "a.csv:302: rating is 'good', not a number"),
    (cell("rating", ""), "a.csv:302: the label rating is missing"),
    (cell("day", "5"), "a.csv:302: day is 5, after a row of 299"),
    (cell("day", "2026-03-01"), "day is '2026-03-01', not a number; write split.by = \"time\" if these are dates"),
    (cell("fold", "z", FOLDS), "a.csv:302: fold is 'z', a value of no split"),
    (cell("item", 'a"b,c'), "a.csv:302: 9 fields, expected 8, in '"),
    (cell("day", "", BY_TIME), "a.csv:302: day is missing"),
    (settings("rating >= 4", "rating"), "a.csv:2: the label rating is"),
    (settings("rating >= 4", "ratng >= 4"), "a.csv:1: no column 'ratng', which"),
    (settings("rating >= 4", "rating >= four"), "out.toml: label 'rating >= four': four is no number"),
    (settings('"log1p"', '"log2"'), "out.toml: dense.price: transform is 'log2', not one of none, log1p, stand"),
    (settings("transform =", "transfrom ="), "out.toml: unknown setting dense.age.transfrom; did you mean"),
    (settings("missing = -1", 'missing = "none"'), "out.toml: dense.day: missing is 'none'; write a number"),
    (settings('"integer"', '"int"'), "out.toml: categorical.user: type is 'int', not one of string, integer, bucket"),
    (settings("hash = 10", "hash = 0"), "out.toml: categorical.shop: hash is 0, not a whole number"),
    (settings("hash = 10", "hash = 10, min_count = 2"), "out.toml: categorical.shop: hashed tokens are not counted"),
    (settings("[categorical]", "[categories]"), "out.toml: unknown setting categories; did you mean 'categorical'?"),
    (settings("[dense]", "[dense"), "out.toml: not a TOML file: "),
    (settings('group = "user"', 'group = "age"'), "out.toml: group 'age' is not in [categorical]"),
    (settings("[categorical]", "user = {}\n[categorical]"), "out.toml: 'user' is in [dense] and in [categorical]"),
    (settings("[categorical]", "rating = {}\n[categorical]"), "out.toml: the label 'rating' is a feature too"),
    (settings('time = "day"', ""), 'out.toml: split.by = "time" needs a column of time'),
    (settings(COLUMNS, 'dense = 3\n[categorical]\nuser = "integer"\n'), "out.toml: dense is 3, not a table of settin"),
    (settings("", "", '[split]\nby = "row"'), "out.toml: split.by is 'row'; write one of rows, random, column, fi"),
    (settings("", "", "[split]\nshares = [0.5, 0.4]"), "out.toml: split.shares is [0.5, 0.4]; write shares"),
    (settings("", "", '[split]\nby = "time"'), "out.toml: split by time: write train_until ="),
    (settings("", "", '[split]\nby = "column"\ncolumn = "fold"'), 'out.toml: split by column: write column = "..."'),
    (settings("", "", '[split]\nby = "rows"\ncolumn = "fold"'), "out.toml: split.column does not go with"),
    (settings("", "", '[table]\nseparator = "ab"'), "out.toml: table.separator 'ab' is not one character"),
    (settings("", "", '[split]\nby = "time"\ntrain_until = -5'), "no row is in split 'train': change [split]"),
    (parquet(ROWS, '"integer"', '"string"'), "a.parquet: column 'user' is int32, which cannot be read as the string"),
    (parquet(change(300, "rating", "")), "a.parquet: row 301: the label rating is missing"),
    (without_ages, "column 'age' is missing in all 600 rows"),
    (raw(b""), "a.csv:1: the file is empty"),
    (raw(HEAD), "not one good row in the raw files"),
    (raw(b"PAR1 and no more", "a.parquet"), "a.parquet: not a readable Parquet file"),
    (raw(HEAD.replace(b"fold", b"user")), "a.csv: two columns 'user'; rename one"),
    (raw(gzip.compress(b""), "a.csv.gz"), "a.csv.gz:1: holds no text"),
    (raw(b"user\0,x\n"), "a.csv:1: is no row of text (it has NUL bytes)"),
    (raw(b"user\rx,y\n"), "a.csv:1: is no row of text (new-line character seen in unquoted field"),
    (raw(gzip.compress(HEAD + b"1,2\n" * 9)[:-9], "a.csv.gz"), "a.csv.gz:"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_bad_input_is_said_once_with_its_place(make, said, tmp_path, capsys):
    file, text = make(tmp_path)
    assert prepare(tmp_path, file, text) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1, "one message"
    assert not (tmp_path / "out").exists(), "nothing is left behind"


@pytest.mark.parametrize(("more", "said"), [((), True), (("--split-name", "test"), False)])
def test_a_table_without_a_label_is_told_to_have_none(more, said, tmp_path, capsys):
    columns = COLUMNS.replace('label = "rating >= 4"', "") + BY_TIME
    every = ("--split", "none", "--fit-on", "all")
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), columns, *every, *more) == 0
    warning = f'WARNING: no label: nothing can be trained on this data. Write label = "..." at the top of {tmp_path}/'
    assert (warning in capsys.readouterr().out) == said


def test_large_values_that_are_not_scaled_are_named(tmp_path, capsys):
    rows = change(300, "day", "-4e26")
    columns = COLUMNS + "[split]\nby = 'random'\n"
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv", rows), columns.replace('time = "day"', "")) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert warnings[0].startswith('WARNING: day reaches 4.61e+18, which "none" does not scale')


def test_a_table_need_have_no_dense_features(tmp_path):
    schema = '[categorical]\nitem = {}\n[split]\nby = "random"\n'
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), schema) == 0
    assert read_manifest(tmp_path / "out").features.dense == ()
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_a_vocabulary_prepares_further_rows(tmp_path):
    file = write_csv(tmp_path / "a.csv")
    assert prepare(tmp_path, file, COLUMNS + BY_TIME, "--no-shuffle", name="a") == 0
    further = ("--vocabulary", str(tmp_path / "a"), "--split", "none", "--split-name", "test")
    assert prepare(tmp_path, write_csv(tmp_path / "b.csv", ROWS[500:]), COLUMNS, *further, name="b") == 0
    same({"test": load(tmp_path / "a")["test"]}, load(tmp_path / "b"))
    other = COLUMNS.replace("hash = 10", "hash = 11")
    assert prepare(tmp_path, file, other, *further, name="c") == 2


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_schemas_are_sound(path):
    features = {"criteo": 26, "criteo_x1": 26, "criteo_x4": 39, "avazu": 22, "movielens": 2, "movielens_100k": 5}
    assert features[path.stem] == len(read_schema(path).features.sparse)


@pytest.mark.parametrize("name", ["a.csv", "b.tsv", "c.parquet"])
def test_a_guessed_schema_prepares_the_file(name, tmp_path, capsys):
    if name == "c.parquet":
        file = write_parquet(tmp_path / name)
    else:
        file = write_csv(tmp_path / name, separator="," if name == "a.csv" else "\t", head=name == "a.csv")
    path = tmp_path / "schema.toml"
    assert main(["table", "--guess", "--schema", str(path), str(file)]) == 0
    found = read_schema(path)
    if name == "b.tsv":
        assert list(found.columns) == [f"column{i}" for i in range(1, 9)]
        assert found.label is None
    else:
        assert found.label.column == "rating"
        assert list(found.dense) == ["price", "age"], "day counts rows"
        assert {n: c.type for n, c in found.categorical.items()} == {
            "user": "integer",
            "item": "string",
            "shop": "string",
            "fold": "string",
        }
    assert main(["table", "--schema", str(path), str(file), "-o", str(tmp_path / "out")]) == 0
    assert main(["table", "--guess", "--schema", str(path), str(file)]) == 2
    assert "exists, and would be lost" in capsys.readouterr().err
    assert main(["table", "--schema", str(path), str(file)]) == 2


@pytest.mark.parametrize(("encoded", "plain"), [(True, 1000), (True, 0), (False, 1000), (["shop"], 1000)])
def test_encoded_strings_of_parquet_are_those_of_text(tmp_path, monkeypatch, encoded, plain):
    """Row groups, reads and batches that end at different rows; strings, missing ones too, in dictionaries or not, and
    read as such or not."""
    from pyarrow import parquet as arrow_parquet

    from data_prep.table import parquet

    monkeypatch.setattr(parquet, "READ_ROWS", 64)
    monkeypatch.setattr(parquet, "BATCH_ROWS", 48)
    monkeypatch.setattr(parquet, "PLAIN_BYTES", plain)
    file = write_parquet(tmp_path / "a.parquet")
    arrow_parquet.write_table(arrow_parquet.read_table(file), file, row_group_size=130, use_dictionary=encoded)
    schema = COLUMNS + BY_TIME + '[table]\nmissing = ["", "s3", "\u00eftem-2"]\n'
    assert prepare(tmp_path, file, schema, name="parquet") == 0
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), schema, "--no-shuffle", name="csv") == 0
    assert prepare(tmp_path, file, schema, "--no-shuffle", name="ordered") == 0
    same(load(tmp_path / "ordered"), load(tmp_path / "csv"))
    assert (load(tmp_path / "csv")["train"][0] == 0).any()


def test_columns_with_dictionaries_are_read_as_such(tmp_path):
    """A column whose dictionary became too large is plain from there on."""
    import pyarrow as pa
    from pyarrow import parquet as arrow_parquet

    from data_prep.raw.sources import open_sources
    from data_prep.table.parquet import ParquetTable

    texts = {"few": ["ab", "cd", None] * 2000, "many": [f"some {i}" for i in range(6000)], "y": ["0", "1"] * 3000}
    file = tmp_path / "a.parquet"
    arrow_parquet.write_table(pa.table(texts), file, row_group_size=3000, dictionary_pagesize_limit=1000)
    schema = tmp_path / "schema.toml"
    schema.write_text('label = "y == \'1\'"\n[categorical]\nfew = "string"\nmany = "string"\n')
    sources = open_sources([file])
    table = ParquetTable(read_schema(schema), sources, 0, True)
    (groups,) = table._pieces(sources[0], 1 << 30)
    assert table._encoded(sources[0], groups) == ["few"]
    batches = list(table.batches(sources[0], groups))
    assert all(pa.types.is_dictionary(batch.schema.field("few").type) for batch in batches)
    assert all(batch.schema.field("many").type == pa.string() for batch in batches)


def test_a_run_file_is_no_schema(tmp_path, capsys):
    run = '[data]\nfolder = "data"\n[dense]\nname = "adam"\n'
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), run) == 2
    assert "out.toml: is a run file, which 'ssmpi train' reads" in capsys.readouterr().err


BY_DATE = """
label = "rating >= 4"
time = "day"
[categorical]
user = "integer"
[split]
by = "time"
train_until = 2026-03-03
"""


@pytest.fixture
def by_date(tmp_path):
    """A file of six days, and a data set of it whose training rows are those of the first two."""
    rows = [f"{day % 6},{day},2026-03-0{1 + day // 10}" for day in range(60)]
    file = tmp_path / "a.csv"
    file.write_text("\n".join(["rating,user,day", *rows]) + "\n")
    assert prepare(tmp_path, file, BY_DATE) == 0
    return file


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"integer"', '"string"', 'categorical.user.type = "integer", this run has "string"'),
        (">= 4", ">= 3", 'label = "rating >= 4.0", this run has "rating >= 3.0"'),
        ("03-03", "03-05", "split.train_until = 2026-03-03, this run has 2026-03-05"),
        ("03-03", "03-03\nvalidation_until = 2026-03-05T06:00:00",
         "split.validation_until = none, this run has 2026-03-05 06:00:00"),
    ],
)  # fmt: skip
def test_a_changed_schema_is_told_by_its_keys(old, new, told, by_date, tmp_path, capsys):
    """As they stand in schema.toml, not as Python has them."""
    assert prepare(tmp_path, by_date, BY_DATE.replace(old, new)) == 2
    assert f"already holds a data set made with {told}; give another --output" in capsys.readouterr().err


def test_inspect_shows_training_rows_and_dates_of_a_split_by_time(by_date, tmp_path, capsys):
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "fitted_rows 20\n" in shown
    assert "train_until 2026-03-03\n" in shown


@pytest.mark.parametrize("write", [write_csv, write_parquet])
@pytest.mark.parametrize("wrong", [lambda found: [(piece, n + 1) for piece, n in found], lambda found: found[:-1]])
def test_a_file_with_other_rows_than_were_counted_has_changed(wrong, write, tmp_path, monkeypatch, capsys):
    from data_prep.table.parquet import ParquetTable
    from data_prep.table.text import TextTable

    for kind in (ParquetTable, TextTable):
        monkeypatch.setattr(kind, "count_rows", lambda table, job, real=kind.count_rows: wrong(real(table, job)))
    file = write(tmp_path / ("a.parquet" if write is write_parquet else "a.csv"))
    assert prepare(tmp_path, file, COLUMNS.replace('time = "day"', "")) == 2
    assert f"{file}: changed since the job began" in capsys.readouterr().err


def test_batches_are_of_equal_rows_wherever_row_groups_end(tmp_path, monkeypatch):
    import pyarrow as pa

    from data_prep.table import parquet

    monkeypatch.setattr(parquet, "BATCH_ROWS", 10)
    reads = [3, 4, 25, 1, 10, 9, 2]
    texts = [pa.array([f"{i}-{j}" for j in range(n)]).dictionary_encode() for i, n in enumerate(reads)]
    cut = list(parquet._cut(iter([pa.RecordBatch.from_arrays([text], ["a"]) for text in texts])))
    assert [batch.num_rows for batch in cut] == [10, 10, 10, 10, 10, 4]
    assert [v for b in cut for v in b["a"].to_pylist()] == [f"{i}-{j}" for i, n in enumerate(reads) for j in range(n)]
