"""``ssmpi predict`` on new rows of a table of one's own."""

import random

import numpy as np
import pytest
from runs import train_over_threads

from data_prep.cli import main
from ssmpi.runtime.errors import DataError, SettingsError
from ssmpi.tools import score
from ssmpi.tools.score import ScoringInput

SCHEMA = """
label = "rating >= 4"
time = "day"
group = "user"
[dense]
price = "log1p"
age = "standardize"
[categorical]
user = "integer"
item = { min_count = 2 }
shop = { hash = 10 }
visits = { type = "bucket", min_count = 2 }
"""
FEATURES = ("price", "age", "user", "item", "shop", "visits")
pytestmark = pytest.mark.usefixtures("alone")


def drawn(count, seed):
    """Rows by column; some users and items are in few rows."""
    draw = random.Random(seed)
    for day in range(count):
        user, item = int(draw.paretovariate(0.7)), f"item {int(draw.paretovariate(0.7))}"
        age = "" if draw.random() < 0.1 else draw.randint(10, 90)
        yield {
            "day": day, "user": user, "item": item, "shop": f"s{draw.randint(0, 30)}", "price": round(draw.random(), 3),
            "age": age, "visits": "" if user % 7 == 0 else user - 4,
            "rating": 5 if draw.random() < (0.2 + 0.6 * (user % 2)) else 1,
        }  # fmt: skip


def write(path, rows, columns):
    lines = [columns, *([str(row[name]) for name in columns] for row in rows)]
    path.write_text("".join(",".join(words) + "\n" for words in lines))
    return path


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A schema, data that was prepared with it, and a run."""
    base, rows = tmp_path_factory.mktemp("table"), list(drawn(900, 1))
    (base / "schema.toml").write_text(SCHEMA)
    write(base / "past.csv", rows, list(rows[0]))
    assert main(["table", "--schema", str(base / "schema.toml"), str(base / "past.csv"), "-o", str(base / "data")]) == 0
    model = ("topology.embedding_ps=0", "data.batch_size=32")
    return base, train_over_threads(base / "trained", base / "data", *model).folder


def predict(project, source, out, **more):
    base, run = project
    more = {"schema": base / "schema.toml"} | more
    assert score.predict(run, ScoringInput(source, "test", None, **more), out) == 0
    return np.loadtxt(out, ndmin=1)


def test_new_rows_need_features_only_and_keep_their_order(project, tmp_path, capsys):
    """Also of ids never seen, of missing values, and in files of other columns in another order."""
    base, run = project
    rows = [*drawn(300, 2), {"price": "", "age": "", "user": 10**9, "item": "unknown", "shop": "", "visits": -99}]
    found = predict(project, write(tmp_path / "new.csv", rows, FEATURES[::-1]), tmp_path / "scores")
    assert capsys.readouterr().out.endswith(f"301 scores in {tmp_path / 'scores'}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "scores"]
    (tmp_path / "own.toml").write_text(SCHEMA.replace('label = "rating >= 4"\ntime = "day"\n', ""))
    words = ["--vocabulary", base / "data", "--split", "none", "--split-name", "test", "-o", tmp_path / "shards"]
    assert main(["table", "--schema", str(tmp_path / "own.toml"), str(tmp_path / "new.csv"), *map(str, words)]) == 0
    assert score.predict(run, ScoringInput(tmp_path / "shards", "test", None), tmp_path / "expected") == 0
    np.testing.assert_array_equal(found, np.loadtxt(tmp_path / "expected"))
    assert np.ptp(found) > 0.1
    (tmp_path / "parts").mkdir()
    for part, some in ((2, rows[:5]), (10, rows[5:])):
        write(tmp_path / "parts" / f"part-{part}.csv", some, FEATURES)
    (tmp_path / "parts" / "_SUCCESS").touch()
    np.testing.assert_array_equal(predict(project, tmp_path / "parts", tmp_path / "of parts"), found)
    one = predict(project, write(tmp_path / "one.csv", rows[-1:], FEATURES), tmp_path / "a score")
    np.testing.assert_allclose(one, found[-1:], rtol=0, atol=1e-6)


def test_past_rows_with_labels_give_the_scores_of_their_split(project, tmp_path):
    base, run = project
    found = predict(project, base / "past.csv", tmp_path / "scores")
    assert score.predict(run, ScoringInput(base / "data", "test", None), tmp_path / "expected") == 0
    np.testing.assert_allclose(found[-90:], np.loadtxt(tmp_path / "expected"), rtol=0, atol=1e-6)


def test_what_is_wrong_is_named_and_nothing_is_written(project, tmp_path):
    rows = list(drawn(5, 3))
    new, out = write(tmp_path / "new.csv", rows, FEATURES), tmp_path / "scores"
    with pytest.raises(DataError, match=r"name the schema that its data was prepared with \(--schema\), or a prepared"):
        predict(project, new, out, schema=None)
    (tmp_path / "other.toml").write_text(SCHEMA.replace("item =", "page ="))
    with pytest.raises(DataError, match=r"other\.toml: other features .*page.* than the data this model was"):
        predict(project, new, out, schema=tmp_path / "other.toml")
    with pytest.raises(SettingsError, match=r"--schema is for raw files, and .*data is prepared: leave it out"):
        predict(project, project[0] / "data", out)
    (tmp_path / "other.toml").write_text(SCHEMA.replace("hash = 10", "hash = 11"))
    with pytest.raises(DataError, match="was made with other columns than those of"):
        predict(project, new, out, schema=tmp_path / "other.toml")
    write(new, [*rows, rows[0] | {"user": "x"}], FEATURES)
    with pytest.raises(DataError, match=r"new\.csv:7: user is 'x', not an integer"):
        predict(project, new, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "other.toml"]


def test_rows_with_weighted_lists_are_scored_as_prepared_ones(tmp_path):
    """Their weights are read, and matter."""
    draw, rows = random.Random(1), []
    for number in range(400):
        tags = [draw.choice("abcdef") for _ in range(draw.randint(0, 4))]
        weights = [round(draw.uniform(-2, 2), 3) for _ in tags]
        rating = int(sum(w * (t < "d") for t, w in zip(tags, weights, strict=True)) > 0)
        row = {"price": number % 7, "tags": "|".join(tags), "weights": "|".join(map(str, weights)), "rating": rating}
        rows.append(row)
    lists = '[list]\ntags = { longest = 4, weights = "weights" }\n'
    (tmp_path / "s.toml").write_text(f'label = "rating"\n[dense]\nprice = "none"\n{lists}')
    past, data = write(tmp_path / "past.csv", rows, list(rows[0])), tmp_path / "data"
    assert main(["table", "--schema", str(tmp_path / "s.toml"), str(past), "-o", str(data), "--no-shuffle"]) == 0
    run = train_over_threads(tmp_path / "trained", data, "topology.embedding_ps=0", "data.batch_size=32").folder
    found = predict((tmp_path, run), past, tmp_path / "scores", schema=tmp_path / "s.toml")
    assert score.predict(run, ScoringInput(data, "test", None), tmp_path / "expected") == 0
    np.testing.assert_array_equal(found[-40:], np.loadtxt(tmp_path / "expected"))
    ones = [row | {"weights": "|".join(["1"] * len(row["tags"][::2]))} for row in rows]
    others = write(tmp_path / "ones.csv", ones, list(rows[0]))
    assert (predict((tmp_path, run), others, tmp_path / "again", schema=tmp_path / "s.toml") != found).any()
    (tmp_path / "s.toml").write_text((tmp_path / "s.toml").read_text().replace(', weights = "weights"', ""))
    with pytest.raises(DataError, match="name the schema that it was prepared with"):
        predict((tmp_path, run), past, tmp_path / "no scores", schema=tmp_path / "s.toml")
