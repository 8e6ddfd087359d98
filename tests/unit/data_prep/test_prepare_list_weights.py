"""Weights of lists in tables against an oracle in plain Python, for every kind of file; ranks, kills, bad input."""

import math
import random

import h5py
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from test_prepare_once import prepare_on
from test_prepare_table import content, prepare

from data_prep.check.verify import verify
from data_prep.table.schema import read_schema
from ssmpi.data.features import ListOptions
from ssmpi.data.schema import read_manifest
from ssmpi.data.shard_columns import read_columns

NAMES = ["items", "scores", "tags", "shares", "shops", "price", "label"]
COLUMNS = """
label = "label"
[dense]
price = "none"
[list]
items = {longest = 5, weights = "scores"}
shops = {longest = 3, hash = 1000}
tags = {type = "integer", separator = " ", longest = 3, truncate = true, weights = "shares"}
[split]
by = "rows"
shares = [0.8, 0.1, 0.1]
"""
SMALL = ("--piece-bytes", "4000", "--shard-rows", "90")


def make_rows(count=400, seed=1):
    """Items and their scores, tags and their shares (both None where missing), shops, price, label."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        items = [draw.choice([None, "a", "b:1", "ç", "d", "e"]) for _ in range(draw.randint(0, 5))]
        scores = [None if one is None and draw.random() < 0.5 else draw.gauss(0, 10) for one in items]
        tags = [draw.randint(-3, 40) for _ in range(draw.choice([0, 1, 2, 7]))]
        shares = [draw.choice([0.0, 1.0, -2.5, 1e-30, 3e38]) for _ in tags]
        if items.count(None) == len(items) == 1:
            items, scores = [], []  # as text a list of nothing is an empty one
        shops = [f"s{draw.randint(0, 9)}" for _ in range(draw.randint(0, 3))]
        rows.append([items, scores, tags, shares, shops, number, number % 2])
    return rows


ROWS = make_rows()


def joined(values, separator="|"):
    return separator.join("" if value is None else str(value) for value in values)


def as_text(row):
    items, scores, tags, shares, shops, price, label = row
    texts = [joined(items), joined(scores), joined(tags, " "), joined(shares, " "), joined(shops), price, label]
    return list(map(str, texts))


def write_csv(path, texts=None):
    lines = [",".join(row) for row in [NAMES, *(texts or map(as_text, ROWS))]]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_parquet(path, rows=ROWS, kind=None, **more):
    kinds = [pa.list_(pa.string()), kind or pa.list_(pa.float64()), pa.list_(pa.int16()), pa.list_(pa.float32())]
    columns = list(map(list, zip(*rows, strict=True)))
    columns[1] = [some or None for some in columns[1]]
    columns[4] = [joined(shops) for shops in columns[4]]
    arrays = [pa.array(v, k) for v, k in zip(columns, [*kinds, pa.string(), pa.int64(), pa.int8()], strict=True)]
    parquet.write_table(pa.table(dict(zip(NAMES, arrays, strict=True)) | more), path, row_group_size=130)
    return path


def load(folder):
    """By price: the ids and the weights of each list, items, shops and tags."""
    found, features = {}, read_manifest(folder).features
    assert features.sparse == ("items", "shops", "tags")
    for split, about in read_manifest(folder).splits.items():
        for entry in about.shards:
            with h5py.File(folder / entry.file) as shard:
                columns = read_columns(shard, 0, entry.rows)
            assert columns.lists.weights.dtype == np.float32
            starts = np.append(0, columns.lists.ends.reshape(-1)[:-1]).reshape(-1, 3)
            for price, begin, end in zip(columns.dense[:, 0], starts, columns.lists.ends, strict=True):
                both = [(columns.lists.ids[a:b], columns.lists.weights[a:b]) for a, b in zip(begin, end, strict=True)]
                found[int(price)] = split, *both
    return found


def expected():
    """By price: the tokens and the weights of each list."""
    found = {}
    for items, scores, tags, shares, shops, price, _ in ROWS:
        there = [(item, score) for item, score in zip(items, scores, strict=True) if item is not None]
        found[price] = there, [(shop, 1.0) for shop in shops], list(zip(tags, shares, strict=True))[:3]
    return found


def check(folder):
    """The weights are the oracle's, to the bit, and each lies with the id of its token."""
    wanted, seen = expected(), [{}, {}, {}]
    rows = load(folder)
    assert rows.keys() == wanted.keys()
    for price, (_, *lists) in rows.items():
        for known, (ids, weights), pairs in zip(seen, lists, wanted[price], strict=True):
            assert weights.tolist() == [np.float32(weight) for _, weight in pairs]
            for one, (token, _) in zip(ids.tolist(), pairs, strict=True):
                assert known.setdefault(token, one) == one, "a token has one id"
    assert [len(known) == len(set(known.values())) for known in (seen[0], seen[2])] == [True, True]
    assert verify(folder) == []
    return rows


def test_weights_lie_with_the_ids_of_their_values(tmp_path):
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), COLUMNS, *SMALL) == 0
    check(tmp_path / "out")
    features = read_manifest(tmp_path / "out").features
    assert features.lists["items"] == ListOptions("sum", weighted=True)
    assert features.lists["shops"] == ListOptions("sum")


@pytest.mark.parametrize("kind", ["lists", "large", "text", "dictionaries"])
def test_parquet_has_the_rows_of_text(kind, tmp_path):
    """Scores as lists of numbers, or as text to split."""
    texts = pa.array([joined(row[1]) for row in ROWS])
    scores = {
        "large": pa.array([row[1] for row in ROWS], pa.large_list(pa.float64())),
        "text": texts,
        "dictionaries": texts.dictionary_encode(),
    }
    more = {"scores": scores[kind]} if kind in scores else {}
    assert prepare(tmp_path, write_parquet(tmp_path / "a.parquet", **more), COLUMNS, *SMALL, name="a") == 0
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv"), COLUMNS, "--shard-rows", "90", name="b") == 0
    found, text = check(tmp_path / "a"), check(tmp_path / "b")
    assert {price: row[0] for price, row in found.items()} == {price: row[0] for price, row in text.items()}
    assert all(a[0].tolist() == b[0].tolist() for p in found for a, b in zip(found[p][1:], text[p][1:], strict=True))


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_two_ranks_give_the_bytes_of_one(write, tmp_path):
    file = write(tmp_path / "file")
    assert prepare(tmp_path, file, COLUMNS, *SMALL, "--fit-on", "train", name="alone") == 0
    prepare_on(2, tmp_path / "alone.toml", file, tmp_path / "out")
    assert content(tmp_path / "out") == content(tmp_path / "alone")
    assert read_manifest(tmp_path / "out") == read_manifest(tmp_path / "alone")


@pytest.mark.parametrize("step", ["scatter", "write_shards", "make_manifest"])
def test_a_killed_preparation_is_resumed(step, tmp_path, monkeypatch):
    file = write_csv(tmp_path / "a.csv")
    assert prepare(tmp_path, file, COLUMNS, *SMALL, name="a") == 0
    with monkeypatch.context() as patch:
        patch.setattr(f"data_prep.passes.{step}", lambda *unused: exit("killed"))
        with pytest.raises(SystemExit):
            prepare(tmp_path, file, COLUMNS, *SMALL)
    assert prepare(tmp_path, file, COLUMNS, *SMALL) == 0
    assert content(tmp_path / "out") == content(tmp_path / "a")


def test_a_schema_without_weights_is_what_it_was(tmp_path):
    """So that a preparation which an earlier version began is continued."""
    path = tmp_path / "schema.toml"
    path.write_text(COLUMNS.replace(', weights = "scores"', "").replace(', weights = "shares"', ""))
    schema = read_schema(path)
    assert all("weights" not in column for column in schema.identity()["schema.lists"].values())
    path.write_text(COLUMNS)
    weighted = read_schema(path)
    assert weighted.identity()["schema.lists"]["items"]["weights"] == "scores"
    assert weighted.columns_identity() == schema.columns_identity(), "a vocabulary is of either"


def test_bad_weights_are_left_out_and_named(tmp_path, capsys):
    texts = [as_text(row) for row in ROWS]
    texts.insert(100, ["a|d", "1", "", "", "", "0", "0"])
    texts.insert(200, ["a||d", "1|2|x", "", "", "", "0", "0"])
    assert prepare(tmp_path, write_csv(tmp_path / "a.csv", texts), COLUMNS, *SMALL, "--on-bad-row", "skip") == 0
    said = capsys.readouterr().out
    assert f"skipped 1 row: number of scores; the first is {tmp_path / 'a.csv'}:102" in said
    assert f"skipped 1 row: value of scores; the first is {tmp_path / 'a.csv'}:202" in said
    check(tmp_path / "out")


def setting(old, new):
    return lambda tmp_path: (write_csv(tmp_path / "a.csv"), COLUMNS.replace(old, new))


def cells(**values):
    texts = [as_text(row) for row in ROWS]
    for name, value in values.items():
        texts[300][NAMES.index(name)] = value
    return lambda tmp_path: (write_csv(tmp_path / "a.csv", texts), COLUMNS)


def row_of(items, scores, kind=None):
    rows = [*ROWS[:300], [items, scores, *ROWS[300][2:]], *ROWS[301:]]
    return lambda tmp_path: (write_parquet(tmp_path / "a.parquet", rows, kind), COLUMNS)


def scores_of(values):
    return lambda tmp_path: (write_parquet(tmp_path / "a.parquet", scores=pa.array(values * len(ROWS))), COLUMNS)


NO_NUMBER = "not a finite number of float32, for a value of items; repair or remove the row"
WRONG = [
    (cells(items="a|b|d", scores="1|2"), "a.csv:302: scores has 2 weights, and items 3 values; repair or remove the"),
    (cells(items="a", scores=""), "a.csv:302: scores has 0 weights, and items 1 values"),
    (cells(items="", scores="1"), "a.csv:302: scores has 1 weights, and items 0 values"),
    (cells(items="a|b", scores="1|two"), f"a.csv:302: scores has 'two', {NO_NUMBER}"),
    (cells(items="a|b", scores="|2"), f"a.csv:302: scores has '', {NO_NUMBER}"),
    (cells(items="a|b", scores="1|nan"), f"a.csv:302: scores has 'nan', {NO_NUMBER}"),
    (cells(items="a", scores="-inf"), f"a.csv:302: scores has '-inf', {NO_NUMBER}"),
    (cells(items="a|b", scores="1|1e39"), f"a.csv:302: scores has '1e39', {NO_NUMBER}"),
    (cells(tags="1 2 3 4", shares="1 2 3 x"), "a.csv:302: shares has 'x', not a finite number"),
    (row_of(["a", "b"], [1.0]), "a.parquet: row 301: scores has 1 weights, and items 2 values"),
    (row_of(["a", "b"], [1.0, math.nan]), f"a.parquet: row 301: scores has 'nan', {NO_NUMBER}"),
    (row_of(["a", "b"], [1.0, None]), f"a.parquet: row 301: scores has nothing, {NO_NUMBER}"),
    (row_of(["a"], [math.inf]), f"a.parquet: row 301: scores has 'inf', {NO_NUMBER}"),
    (scores_of([1.0]), "a.parquet: column 'scores' is double, which cannot be read as the list of numbers that"),
    (scores_of([["1"]]), "a.parquet: column 'scores' is list<element: string>, which cannot be read as the list of"),
    (setting('"scores"', '"score"'), "a.csv:1: no column 'score', which"),
    (setting('"scores"', "3"), "out.toml: list.items.weights is 3, not a string"),
    (setting('weights = "scores"', 'weights = "scores", pooling = "mean"'), "out.toml: list.items: a list with weights "
     'is pooled by "sum"; leave out pooling, or weights'),
    (setting('"scores"', '"price"'), "out.toml: column 'price' is used as number and as weights; use it as one"),
    (setting('"scores"', '"shops"'), "out.toml: column 'shops' is used as list and as weights; use it as one"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "said"), WRONG, ids=[f"{i}-{said[:40]}" for i, (_, said) in enumerate(WRONG)])
def test_wrong_weights_are_said_once_with_their_place(make, said, tmp_path, capsys):
    file, text = make(tmp_path)
    assert prepare(tmp_path, file, text) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("error: ") == 1
    assert not (tmp_path / "out").exists()
