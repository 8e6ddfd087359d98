"""List columns of tables against an oracle in plain Python, for every kind of file; kills, bad rows, bad input."""

import gzip
import math
import random
from collections import Counter

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from test_prepare_table import content, prepare

from data_prep.check.verify import verify
from data_prep.cli import main
from data_prep.table.schema import read_schema
from ssmpi.data.schema import read_manifest
from ssmpi.data.shard_columns import read_columns

NAMES = ["user", "genres", "tags", "shops", "price", "label"]
COLUMNS = """
label = "label"
[dense]
price = "none"
[categorical]
user = "integer"
[list]
genres = {longest = 5, pooling = "mean"}
tags = {type = "integer", separator = " ", longest = 4, truncate = true, min_count = 2}
shops = {separator = "::", longest = 3, hash = 7}
[split]
by = "rows"
shares = [0.8, 0.1, 0.1]
"""
SMALL = ("--piece-bytes", "3000", "--shard-rows", "90")


def make_rows(count=500, seed=1):
    """user, genres, tags, shops, price, label; prices say which row it is."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        genres = [f"gênre{int(draw.paretovariate(0.7)) % 40}" for _ in range(draw.randint(0, 5))]
        tags = [int(draw.paretovariate(0.5)) % 90 - 3 for _ in range(draw.choice([0, 1, 2, 9]))]
        shops = [f"s{draw.randint(0, 20)}" for _ in range(draw.randint(0, 3))]
        rows.append([draw.randint(0, 9), genres, tags, shops, number, draw.randint(0, 1)])
    return rows


ROWS = make_rows()


def as_text(row):
    user, genres, tags, shops, price, label = row
    return [str(user), "|".join(genres), " ".join(map(str, tags)), "::".join(shops), str(price), str(label)]


def write_csv(path, rows=ROWS, texts=None):
    lines = [",".join(row) for row in [NAMES, *(texts or map(as_text, rows))]]
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_parquet(path, rows=ROWS, genres=None, tags=None):
    kinds = [pa.int64(), genres or pa.list_(pa.string()), tags or pa.list_(pa.int32()), pa.string(), pa.int64()]
    columns = list(map(list, zip(*rows, strict=True)))
    columns[3] = ["::".join(shops) for shops in columns[3]]  # text to split
    columns[1] = [some or None for some in columns[1]]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, [*kinds, pa.int8()], strict=True)]
    parquet.write_table(pa.table(dict(zip(NAMES, arrays, strict=True))), path, row_group_size=130)
    return path


def load(folder):
    """By split: for each row its price, and the lists of ids by name."""
    found, manifest = {}, read_manifest(folder)
    for split, about in manifest.splits.items():
        found[split] = []
        for entry in about.shards:
            with h5py.File(folder / entry.file) as shard:
                columns = read_columns(shard, 0, entry.rows)
            at = 0
            for price, lengths in zip(columns.dense[:, 0], columns.lists.lengths, strict=True):
                lists = np.split(columns.lists.ids[at : at + lengths.sum()], np.cumsum(lengths)[:-1])
                found[split].append((int(price), [some.tolist() for some in lists]))
                at += lengths.sum()
    return found


def numbered(lists, least=1):
    """Ids of tokens by frequency in ``lists``; ties are of any order."""
    counts = Counter(token for some in lists for token in some)
    return {token: count for token, count in counts.items() if count >= least}


def test_every_list_is_the_oracles(tmp_path, capsys):
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), COLUMNS, *SMALL, "--no-shuffle") == 0
    manifest = read_manifest(tmp_path / "out")
    assert manifest.features.sparse == ("user", "genres", "tags", "shops")
    assert manifest.version == 2
    genres = manifest.features.lists["genres"]
    assert (genres.pooling, genres.longest) == ("mean", 5)
    assert genres.mean_length == pytest.approx(np.mean([len(row[1]) for row in ROWS[:400]]))
    assert manifest.features.lists["tags"].mean_length == pytest.approx(
        np.mean([min(len(row[2]), 4) for row in ROWS[:400]])
    )
    of_genres = numbered(row[1] for row in ROWS[:400])
    of_tags = numbered((row[2][:4] for row in ROWS[:400]), least=2)
    assert manifest.cardinalities[1:] == (len(of_genres) + 2, len(of_tags) + 2, 9)
    ids_of = {"genres": {}, "tags": {}, "shops": {}}
    rows = [row for some in load(tmp_path / "out").values() for row in some]
    assert [price for price, _ in rows] == list(range(500))
    for (_, lists), row in zip(rows, ROWS, strict=True):
        for name, ids, tokens in zip(ids_of, lists, (row[1], row[2][:4], row[3]), strict=True):
            assert len(ids) == len(tokens)
            for token, one in zip(tokens, ids, strict=True):
                assert ids_of[name].setdefault(token, one) == one, "a token has one id"
    for known, found in ((of_genres, ids_of["genres"]), (of_tags, ids_of["tags"])):
        assert all((found[token] == 1) == (token not in known) for token in found)
        order = sorted((token for token in found if token in known), key=found.get)
        assert [known[token] for token in order] == sorted((known[token] for token in order), reverse=True)
        assert len({found[token] for token in order}) == len(order)
    assert set(ids_of["shops"].values()) <= set(range(2, 9))
    assert verify(tmp_path / "out") == []
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    most, count = Counter(tag for row in ROWS for tag in row[2][:4]).most_common(1)[0]
    every = sum(min(len(row[2]), 4) for row in ROWS)
    assert f" {most} {count / every:.2%}" in said
    assert "Traceback" not in said


def test_rows_keep_their_lists_in_any_order_of_shards(tmp_path):
    file = write_csv(tmp_path / "a.csv")
    assert prepare(tmp_path, file, COLUMNS, *SMALL, "--no-shuffle", name="a") == 0
    assert prepare(tmp_path, file, COLUMNS, *SMALL, name="b") == 0
    still, mixed = load(tmp_path / "a"), load(tmp_path / "b")
    assert still["train"] != mixed["train"]
    assert {split: sorted(rows) for split, rows in mixed.items()} == still


@pytest.mark.parametrize("split", ['by = "random"\nshares = [0.6, 0.2, 0.2]', 'by = "time"\ntrain_until = 300'])
def test_rows_keep_their_lists_in_splits_of_their_own(split, tmp_path):
    schema = COLUMNS[: COLUMNS.index("[split]")] + f"[split]\n{split}\n"
    schema = schema.replace(
        'label = "label"', 'label = "label"\ntime = "price"' * ("time" in split) or 'label = "label"'
    )
    file = write_csv(tmp_path / "a.csv")
    assert prepare(tmp_path, file, schema, *SMALL, "--fit-on", "all") == 0
    assert prepare(tmp_path, file, COLUMNS, *SMALL, "--fit-on", "all", name="whole") == 0
    one, other = (sorted(row for rows in load(tmp_path / name).values() for row in rows) for name in ("out", "whole"))
    assert one == other


def test_all_kinds_of_files_give_the_same_lists(tmp_path):
    write_csv(tmp_path / "a.csv")
    write_csv(tmp_path / "b.csv.gz")
    write_parquet(tmp_path / "c.parquet")
    write_parquet(tmp_path / "d.parquet", genres=pa.large_list(pa.large_string()), tags=pa.list_(pa.int64()))
    write_parquet(tmp_path / "e.parquet", genres=pa.list_(pa.dictionary(pa.int32(), pa.string())))
    for file in sorted(tmp_path.iterdir()):
        assert prepare(tmp_path, file, COLUMNS, *SMALL, "--no-shuffle", name=file.name[0]) == 0
        assert load(tmp_path / file.name[0]) == load(tmp_path / "a")


def test_missing_values_are_left_out_of_lists(tmp_path):
    texts = [["1", "a|NA|b", "1", "", "0", "0"], ["1", "NA", "", "x", "1", "1"], ["1", "|a|", "2", "", "2", "1"]]
    schema = COLUMNS.replace("[split]", '[table]\nmissing = ["", "NA"]\n[split]')
    write_csv(tmp_path / "a.csv", texts=texts)
    more = ("--split", "none", "--fit-on", "all", "--no-shuffle")
    assert prepare(tmp_path, tmp_path / "a.csv", schema, *more) == 0
    rows = load(tmp_path / "out")["train"]
    assert [[len(some) for some in lists] for _, lists in rows] == [[2, 1, 0], [0, 0, 1], [1, 1, 0]]
    assert rows[0][1][0][0] == rows[2][1][0][0]
    table = pa.table({"user": [1], "genres": pa.array([["a", None, "NA"]]), "tags": pa.array([[None, 5]]),
                      "shops": [None], "price": [0], "label": [1]})  # fmt: skip
    table = table.set_column(3, "shops", pa.array([None], pa.string()))
    parquet.write_table(table, tmp_path / "b.parquet")
    assert prepare(tmp_path, tmp_path / "b.parquet", schema.replace("shops =", "# "), *more, name="b") == 0
    assert [[len(some) for some in lists] for _, lists in load(tmp_path / "b")["train"]] == [[1, 1]]


@pytest.mark.parametrize("step", ["fit_vocabulary", "scatter", "write_shards", "make_manifest"])
def test_a_killed_preparation_is_resumed(step, tmp_path, monkeypatch):
    file = write_csv(tmp_path / "a.csv")
    assert prepare(tmp_path, file, COLUMNS, *SMALL, name="a") == 0
    with monkeypatch.context() as patch:
        patch.setattr(f"data_prep.passes.{step}", lambda *unused: exit("killed"))
        with pytest.raises(SystemExit):
            prepare(tmp_path, file, COLUMNS, *SMALL)
    lists = sorted((tmp_path / "out" / ".prepare").rglob("*.lists"))
    if lists:  # a damaged one is made again
        lists[0].write_bytes(lists[0].read_bytes()[:-1] + b"?")
    assert prepare(tmp_path, file, COLUMNS, *SMALL) == 0
    assert content(tmp_path / "out") == content(tmp_path / "a")
    assert read_manifest(tmp_path / "out") == read_manifest(tmp_path / "a")


def test_bad_lists_are_left_out_and_named(tmp_path, capsys):
    texts = [as_text(row) for row in ROWS]
    texts.insert(100, ["1", "a|b|c|d|e|f", "1", "", "0", "0"])
    texts.insert(200, ["1", "a", "1 two 3", "", "0", "0"])
    write_csv(tmp_path / "bad.csv", texts=texts)
    assert prepare(tmp_path, write_csv(tmp_path / "good.csv"), COLUMNS, *SMALL, name="good") == 0
    capsys.readouterr()
    assert prepare(tmp_path, tmp_path / "bad.csv", COLUMNS, *SMALL, "--on-bad-row", "skip") == 0
    said = capsys.readouterr().out
    assert f"skipped 1 row: length of genres; the first is {tmp_path / 'bad.csv'}:102" in said
    assert f"skipped 1 row: value of tags; the first is {tmp_path / 'bad.csv'}:202" in said
    found, good = load(tmp_path / "out"), load(tmp_path / "good")
    assert {split: sorted(rows) for split, rows in found.items()} == {
        split: sorted(rows) for split, rows in good.items()
    }


def test_a_vocabulary_of_lists_is_used_again_and_extended(tmp_path):
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv", ROWS[:300]), COLUMNS, *SMALL, name="a") == 0
    later = write_csv(tmp_path / "b.csv", ROWS[300:] + make_rows(100, seed=2))
    more = ("--extend-vocabulary", str(tmp_path / "a"), "--no-shuffle")
    assert prepare(tmp_path, later, COLUMNS, *SMALL, *more, name="b") == 0
    given = ("--vocabulary", str(tmp_path / "a"), "--split", "none", "--no-shuffle")
    assert prepare(tmp_path, later, COLUMNS, *SMALL, *given, name="c") == 0
    old, known = read_manifest(tmp_path / "b").cardinalities, read_manifest(tmp_path / "a").cardinalities
    assert all(new >= before for new, before in zip(old, known, strict=True))
    extended = [row for some in load(tmp_path / "b").values() for row in some]
    reused = [row for some in load(tmp_path / "c").values() for row in some]
    for (_, ids), (_, again) in zip(extended, reused, strict=True):
        for some, others, limit in zip(ids, again, known[1:], strict=True):
            assert [one if one < limit else 1 for one in some] == others


def test_a_schema_without_lists_is_what_it_was(tmp_path):
    """So that folders which older versions have finished stay valid."""
    schema = COLUMNS[: COLUMNS.index("[list]")]
    (tmp_path / "s.toml").write_text(schema)
    found = read_schema(tmp_path / "s.toml")
    assert "lists" not in found.columns_identity()
    assert "schema.lists" not in found.identity()


GUESSES = {
    "a|b": ['{ type = "string", longest = 2, separator = "|" }', ["a|b", "b", "c|a"]],
    "words": [
        '{ type = "string", longest = 3, separator = " " }',
        ["x y z", "x z", "y", "z", "y x", "z x y", "z y", "x"],
    ],
    "numbers": ['{ type = "integer", longest = 3, separator = ";" }', ["1;2;3", "2;3", "-1;1"]],
    "titles": [None, ["Toy Story", "Four Rooms", "Get Shorty", "Taxi Driver"]],
    "names": [None, ["anna", "bert", "anna"]],
}


@pytest.mark.parametrize("name", GUESSES)
def test_a_list_column_is_guessed_from_a_sample(name, tmp_path):
    line, values = GUESSES[name]
    text = "click\tuser\tcolumn\n" + "".join(f"{i % 2}\tu{i % 3}\t{value}\n" for i, value in enumerate(values))
    (tmp_path / "a.tsv").write_text(text)
    assert main(["table", "--guess", "--schema", str(tmp_path / "s.toml"), str(tmp_path / "a.tsv")]) == 0
    found = (tmp_path / "s.toml").read_text()
    assert (f"column = {line}" in found) == (line is not None)
    assert ("[list]" in found) == (line is not None)
    assert len(read_schema(tmp_path / "s.toml").lists) == (line is not None)


def test_lists_of_parquet_are_guessed_and_prepared(tmp_path):
    file = write_parquet(tmp_path / "a.parquet")
    assert main(["table", "--guess", "--schema", str(tmp_path / "s.toml"), str(file)]) == 0
    schema = (tmp_path / "s.toml").read_text()
    assert 'genres = { type = "string", longest = 5 }' in schema
    assert 'tags = { type = "integer", longest = 9 }' in schema
    assert prepare(tmp_path, file, schema, *SMALL) == 0


def setting(old, new):
    return lambda tmp_path: (write_csv(tmp_path / "a.csv"), COLUMNS.replace(old, new))


def cell(column, value):
    texts = [as_text(row) for row in ROWS]
    texts[300][NAMES.index(column)] = value
    return lambda tmp_path: (write_csv(tmp_path / "a.csv", texts=texts), COLUMNS)


def in_parquet(genres=None, tags=None, row=None):
    rows = [*ROWS[:300], row or ROWS[300], *ROWS[301:]]
    return lambda tmp_path: (write_parquet(tmp_path / "a.parquet", rows, genres, tags), COLUMNS)


LONG = [1, ["a"] * 6, [], [], 0, 0]
NO_FEATURES = COLUMNS[COLUMNS.index("[categorical]") : COLUMNS.index("[split]")]
WRONG = [
    (cell("genres", "a|b|c|d|e|f"), "a.csv:302: genres has 6 values, and longest = 5 in 'a|b|c|d|e|f'; raise "
     "longest of list.genres in the schema, write truncate = true there"),
    (cell("tags", "1 x 2"), "a.csv:302: tags has 'x', not an integer"),
    (cell("tags", "1  2 99999999999999999999"), "a.csv:302: tags has '99999999999999999999', not an integer"),
    (cell("tags", "1.5"), "a.csv:302: tags has '1.5', not an integer"),
    (in_parquet(row=LONG), "a.parquet: row 301: genres has 6 values, and longest = 5"),
    (in_parquet(tags=pa.list_(pa.float64())), "a.parquet: column 'tags' is list<element: double>, which cannot be read "
     "as the list of integers that"),
    (in_parquet(genres=pa.list_(pa.binary())), None),
    (setting("genres = {longest = 5, ", "genres = {"), "out.toml: list.genres: longest is missing; write the most"),
    (setting("longest = 5", "longest = 0"), "out.toml: list.genres: longest is 0; write the most values"),
    (setting("longest = 5", 'longest = "5"'), "out.toml: list.genres: longest is '5'; write the most values"),
    (setting('genres = {longest = 5, pooling = "mean"}', 'genres = "string"'), "out.toml: list.genres is 'string'"),
    (setting('"mean"', '"max"'), "out.toml: list.genres: pooling is 'max', not 'sum' or 'mean'"),
    (setting("truncate = true", "truncate = 1"), "out.toml: list.tags: truncate is 1, not true or false"),
    (setting("truncate = true", "truncated = true"), "out.toml: unknown setting list.tags.truncated; did you mean"),
    (setting('separator = "::"', 'separator = ""'), "out.toml: list.shops: separator '' is not text within a line"),
    (setting('separator = "::"', "separator = 3"), "out.toml: list.shops.separator is 3, not a string"),
    (setting("hash = 7", "hash = true"), "out.toml: list.shops: hash is True, not a whole number"),
    (setting("hash = 7", "hash = 7, min_count = 2"), "out.toml: list.shops: hashed tokens are not counted"),
    (setting('type = "integer", separator', 'type = "float", separator'), "out.toml: list.tags: type is 'float', not"),
    (setting("[list]", "genres = {}\n[list]"), "out.toml: 'genres' is in [categorical] and in [list]; leave one out"),
    (setting("[list]", "[list]\nprice = {longest = 2}"), "out.toml: 'price' is in [dense] and in [list]; leave"),
    (setting("[list]", "[list]\nlabel = {longest = 2}"), "out.toml: the label 'label' is a feature too"),
    (setting('label = "label"', 'label = "label"\ntime = "tags"'), "out.toml: column 'tags' is used as list and as"),
    (setting('label = "label"', 'label = "label"\ngroup = "genres"'), "out.toml: group 'genres' is not in [cat"),
    (setting("[list]", "[list]\ngenre = {longest = 2}"), "a.csv:1: no column 'genre', which"),
    (setting("[list]", "[lists]"), "out.toml: unknown setting lists; did you mean 'list'?"),
    (setting(NO_FEATURES, ""), "out.toml: no [categorical] or [list] column, so there is nothing to embed"),
    (lambda tmp_path: (write_csv(tmp_path / "a.csv", [[*row[:1], [], *row[2:]] for row in ROWS]), COLUMNS),
     "column 'genres' is missing in all 500 rows"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "said"), WRONG, ids=[f"{i}-{str(said)[:40]}" for i, (_, said) in enumerate(WRONG)])
def test_wrong_lists_are_said_once_with_their_place(make, said, tmp_path, capsys):
    file, text = make(tmp_path)
    assert prepare(tmp_path, file, text) == (2 if said else 0)
    error = capsys.readouterr().err
    if said:
        assert error.startswith("error: ")
        assert said in error
        assert error.count("error: ") == 1
        assert not (tmp_path / "out").exists()


def test_another_vocabulary_is_refused(tmp_path, capsys):
    file = write_csv(tmp_path / "a.csv")
    assert prepare(tmp_path, file, COLUMNS, name="a") == 0
    schema = COLUMNS.replace("hash = 7", "hash = 8")
    assert prepare(tmp_path, file, schema, "--vocabulary", str(tmp_path / "a")) == 2
    assert "was made with other columns" in capsys.readouterr().err
    assert math.isfinite(read_manifest(tmp_path / "a").features.lists["tags"].mean_length)
