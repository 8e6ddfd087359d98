"""A table of one's own from CSV to scores with no vocabulary: ``--hash``, dynamic tables, ``evaluate``, ``predict``."""

import re

import numpy as np
import pytest
from runs import train_over_threads
from test_score_table import FEATURES, SCHEMA, drawn, write

from data_prep.cli import main
from ssmpi.runtime.errors import DataError
from ssmpi.tools import score
from ssmpi.tools.score import ScoringInput

ONCE = SCHEMA.replace('"standardize"', '"log1p"')
pytestmark = pytest.mark.usefixtures("alone")


def prepare(schema, file, out, *more):
    return main(["table", "--schema", str(schema), str(file), "-o", str(out), *map(str, more)])


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A schema that speaks of no keys, data with keys, and a run by two embedding PSs."""
    base, rows = tmp_path_factory.mktemp("keyed"), list(drawn(900, 1))
    (base / "schema.toml").write_text(ONCE)
    write(base / "past.csv", rows, list(rows[0]))
    assert prepare(base / "schema.toml", base / "past.csv", base / "data", "--hash") == 0
    dynamic = ("embedding.dynamic.keys=600", "embedding.dynamic.admit_after=2")
    run = train_over_threads(base / "trained", base / "data", "topology.embedding_ps=2", "data.batch_size=32", *dynamic)
    return base, run


def test_a_trained_model_scores_as_its_run_did(project, tmp_path, capsys):
    base, run = project
    assert run.quality("test")["ne"] < 0.97, "users tell the clicks"
    assert score.evaluate(run.folder, "test", None) == 0
    ne = float(re.search(r"NE ([\d.]+)", capsys.readouterr().out)[1])
    assert ne == pytest.approx(run.quality("test")["ne"], abs=6e-6)
    other = write(tmp_path / "day2.csv", list(drawn(400, 5)), list(next(drawn(1, 1))))
    assert prepare(base / "schema.toml", other, tmp_path / "day2", "--hash") == 0
    assert score.evaluate(run.folder, "test", tmp_path / "day2") == 0, "keys mean the same every day"


def test_new_rows_are_scored_as_prepared_ones(project, tmp_path):
    """To the bit; also of keys never seen, and of missing values."""
    base, run = project
    rows = [*drawn(300, 2), {"price": "", "age": "", "user": 10**9, "item": "unknown", "shop": "", "visits": -99}]
    new = write(tmp_path / "new.csv", rows, FEATURES[::-1])
    source = ScoringInput(new, "test", None, base / "schema.toml")
    assert score.predict(run.folder, source, tmp_path / "scores") == 0
    (tmp_path / "own.toml").write_text(ONCE.replace('label = "rating >= 4"\ntime = "day"\n', ""))
    alone = ("--hash", "--split", "none", "--split-name", "test")
    assert prepare(tmp_path / "own.toml", new, tmp_path / "shards", *alone) == 0
    assert score.predict(run.folder, ScoringInput(tmp_path / "shards", "test", None), tmp_path / "expected") == 0
    found = np.loadtxt(tmp_path / "scores")
    np.testing.assert_array_equal(found, np.loadtxt(tmp_path / "expected"))
    assert len(found) == 301
    assert np.ptp(found) > 0.1


def test_what_is_wrong_is_named(project, tmp_path):
    base, run = project
    new, out = write(tmp_path / "new.csv", list(drawn(5, 3)), FEATURES), tmp_path / "scores"
    with pytest.raises(DataError, match=r"4 with keys, user, item, shop, \.\.\.\): name the schema that its data was"):
        score.predict(run.folder, ScoringInput(new, "test", None), out)
    (tmp_path / "other.toml").write_text(ONCE.replace("item = {", "page = {"))
    with pytest.raises(DataError, match=r"other features .*user, page, shop, .*; 3 with keys, user, shop, visits"):
        score.predict(run.folder, ScoringInput(new, "test", None, tmp_path / "other.toml"), out)
    (tmp_path / "other.toml").write_text(ONCE.replace('price = "log1p"', 'price = "none"'))
    with pytest.raises(DataError, match="was made with other columns than those of"):
        score.predict(run.folder, ScoringInput(new, "test", None, tmp_path / "other.toml"), out)
    assert prepare(base / "schema.toml", base / "past.csv", tmp_path / "ids") == 0
    with pytest.raises(
        DataError, match=r"ids: other features .* with keys, user, item, shop, \.\.\.\): name data with"
    ):
        score.evaluate(run.folder, "test", tmp_path / "ids")
    assert not out.exists()
