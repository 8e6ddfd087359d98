"""A recipe by ssmpi and by FuxiCTR: the tables against sums by hand, and the two sides step by step."""

import dataclasses
import importlib.util
import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import FEW, FEW_CARDINALITIES, make_dataset
from laboratory import CHECKOUT

from jobs.lab.lockstep.run import Lockstep, LockstepRun
from jobs.lab.options import RecipesOptions
from jobs.lab.recipes import recipes, runs, table
from ssmpi.config import load
from ssmpi.data.schema import read_manifest
from ssmpi.model.parameters import by_name
from ssmpi.runtime.errors import DataError, UserError

PACKAGES = Path(os.environ.get("FUXICTR", CHECKOUT / "data/recipes/packages"))
STEPS = 30  # later, rounding has grown


def record(side, seed, aucs, test, rates=(1e-3, 1e-3, 1e-4)):
    passes = [{"auc": a, "log_loss": 0.5, "seconds": 6.0, "rate": r} for a, r in zip(aucs, rates, strict=True)]
    known = {"data": "rare", "settings": "x", "cpu_seconds": 36.0}
    return {**known, "side": side, "seed": seed, "passes": passes, "test": {"auc": test, "log_loss": 0.4}}


RUNS = [
    record("ssmpi", 1, (0.70, 0.72, 0.74), 0.7300), record("fuxictr", 1, (0.71, 0.70, 0.74), 0.7301),
    record("ssmpi", 2, (0.70, 0.72, 0.73), 0.7320), record("fuxictr", 2, (0.71, 0.70, 0.74), 0.7322),
    record("ssmpi", 3, (0.70, 0.72), 0.7310, (1e-3, 1e-3)), record("fuxictr", 3, (0.71, 0.70, 0.74), 0.7310),
    record("ssmpi", 4, (0.50, 0.52, 0.53), 0.5),  # without a partner
]  # fmt: skip


def test_pairs_are_judged_as_by_hand(stats):
    differences = np.array([-1e-4, -2e-4, 0.0])  # ssmpi less FuxiCTR, of seeds 1 to 3
    error = math.sqrt(np.square(differences + 1e-4).sum() / 2 / 3)
    p_equal = stats.t.sf((0.0005 - 0.0001) / error, 2)
    (line,) = table.pair_lines("rare", "fuxictr", RUNS)
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:4] == ["rare", "fuxictr", "3", f"-0.00010 ± {error:.5f}"]
    assert cells[4:7] == [f"{p_equal:.2g}", f"{2 * stats.t.sf(1e-4 / error, 2):.2g}", "equal"]
    assert cells[7] == "-0.01000, +0.02000"  # two passes: one run of ssmpi has no more


def test_sides_have_means_and_the_jump_at_the_cut():
    assert [table.jump(run) for run in RUNS[:5]] == pytest.approx([0.02, 0.03, 0.01, 0.03, None])
    cells = [cell.strip() for cell in table.side_line("rare, fuxictr", RUNS[1:6:2]).strip("|").split("|")]
    expected = ["0.71000 ± 0.00000", f"0.03000 ± {0.0:.5f}", "0.74000 ± 0.00000", "0.73110 ± 0.00061"]
    assert cells == ["rare, fuxictr", "3", *expected, "0.40000 ± 0.00000", "3.0", "0.10", "0.20"]


def test_records_are_found_again_and_a_damaged_one_is_named(tmp_path):
    path = tmp_path / "recipes.jsonl"
    runs.Records(path).add(RUNS[0])
    known = runs.Records(path)
    assert known.has(side="ssmpi", seed=1, settings="x")
    assert not known.has(side="ssmpi", seed=1, settings="y")
    path.write_text(path.read_text() + json.dumps(RUNS[1])[:20])
    with pytest.raises(DataError, match=r"recipes\.jsonl, line 2: not the record of a run"):
        runs.Records(path)


def test_a_record_after_one_without_its_line_end_has_its_own_line(tmp_path):
    path = tmp_path / "recipes.jsonl"
    path.write_text(json.dumps(RUNS[0]))
    known = runs.Records(path)
    for run in RUNS[1:3]:
        known.add(run)
    assert runs.Records(path).lines == RUNS[:3]


def test_a_setting_of_one_side_alone_is_refused(tmp_path):
    options = RecipesOptions(folder=tmp_path)
    with pytest.raises(UserError, match=r"embedding\.rate=0\.01: FuxiCTR's side does not take this; .*--sides ssmpi"):
        recipes.measure(options, ["model.dropout=0", "embedding.rate=0.01"])


def test_an_interrupted_installation_of_fuxictr_is_finished(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    init = tmp_path / "fuxictr/preprocess/__init__.py"
    init.parent.mkdir(parents=True)
    init.write_text("import ray\n")
    runs.install(tmp_path)
    assert not init.read_text()


@pytest.fixture
def side():
    if not (PACKAGES / "fuxictr").is_dir():
        pytest.skip(f"NOT TESTED: FuxiCTR is not in {PACKAGES}; 'python -m jobs.lab recipes' puts it there")
    runs.install(PACKAGES)
    assert importlib.util.find_spec("fuxictr")
    from jobs.lab.recipes import by_fuxictr

    return by_fuxictr


def test_both_sides_take_the_same_steps(tmp_path, side):
    """Losses, dense parameters and rows, also of rows that no batch has; the order of rows is that of real runs."""
    ids = dataclasses.replace(FEW, dense=())
    data = make_dataset(tmp_path / "data", 4_000, cardinalities=FEW_CARDINALITIES, features=ids)
    words = (f"data.folder={data}", f"run.folder={tmp_path / 'run'}", "data.batch_size=100", "model.dropout=0")
    config, cardinalities = load(runs.RUN_FILE, words), tuple(read_manifest(data).cardinalities)
    ours = LockstepRun(config, Lockstep(steps=STEPS))
    ours.train()
    torch.manual_seed(2)
    theirs = side.DCNv2(config, cardinalities, tmp_path)
    theirs.start_as(config, cardinalities)
    theirs._max_gradient_norm = 10.0
    losses = []
    for _, batch in zip(range(STEPS), side.Rows(config, "train"), strict=False):
        penalty = theirs.regularization_loss().item()
        losses.append(theirs.train_step(batch).item() - penalty)
    np.testing.assert_allclose(ours.progress.losses, losses, atol=1e-5)
    named = dict(theirs.named_parameters())
    dense = [value for name, value in named.items() if not name.startswith("embedding_layer.")]
    values = by_name(config.network.layout, ours.trainers[0].replica.vector)
    for parameter, (name, value) in zip(dense, values, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy().reshape(value.shape), value, atol=1e-5, err_msg=name)
    arena = ours.tables.shards[0].rows
    arena.settle(0)
    for part in arena.parts:
        rows = named[f"embedding_layer.embedding_layer.embedding_layers.feature{part.table}.weight"].detach().numpy()
        np.testing.assert_allclose(rows, arena.weights[part.base : part.base + part.rows], atol=1e-5)
