"""The results page's example scores raw rows as ``ssmpi predict`` does."""

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from runs import train_over_threads

from data_prep.cli import main as prepare
from ssmpi.tools import score
from ssmpi.tools.export import export

PAGE = Path(__file__).parents[2] / "jobs" / "guide" / "results.md"
SCHEMA = """label = "clicked"
[dense]
age = "standardize"
price = "log1p"
[categorical]
user = { type = "string" }
item = { type = "integer" }
shop = { type = "string", hash = 20 }
[list]
tags = { type = "string", longest = 4, separator = "|", pooling = "mean" }
"""
NAMES = ("clicked", "age", "price", "user", "item", "shop", "tags")


def write_rows(path, seed):
    draw = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(NAMES)
        for row in range(300):
            tags = "|".join(f"t{n}" for n in draw.integers(9 + seed, size=draw.integers(4)))
            ids = f"u{draw.integers(20 + seed)}", int(draw.integers(-5, 20 + seed)), f"s{draw.integers(40)}"
            values = (int(draw.random() < 0.4), round(draw.random() * 90, 2), round(draw.random() * 9, 2), *ids, tags)
            out.writerow([*values[:1], *("" if row % 7 == k else value for k, value in enumerate(values[1:]))])


@pytest.mark.usefixtures("alone")
def test_a_raw_row_gets_the_score_of_predict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("old.csv"), 0)
    write_rows(Path("new.csv"), 5)  # with ids that the vocabulary does not have
    Path("schema.toml").write_text(SCHEMA)
    assert prepare(["table", "--schema", "schema.toml", "old.csv", "--output", "data"]) == 0
    run = train_over_threads(tmp_path / "run", tmp_path / "data", "embedding.rate=0.5").folder
    source = score.ScoringInput(Path("new.csv"), "test", None, Path("schema.toml"))
    assert score.predict(run, source, Path("scores.txt")) == 0
    assert export(run, "onnx", Path("model.onnx")) == 0
    shutil.copy("data/vocabulary.h5", "vocabulary.h5")
    (code,) = [part for part in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "def score" in part]
    names = {}
    exec(code, names)
    with Path("new.csv").open(newline="") as file:
        rows = [row | {"tags": [tag for tag in row["tags"].split("|") if tag]} for row in csv.DictReader(file)]
    expected = np.loadtxt("scores.txt")
    np.testing.assert_allclose([names["score"](row) for row in rows], expected, rtol=0, atol=2e-6)
    assert np.ptp(expected) > 0.05
