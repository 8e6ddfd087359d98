"""GAUC of a run: the scores of a group's rows meet, whatever trainers and threads have scored them."""

import json
from functools import partial

import numpy as np
import pytest
from datasets import FEW, FEW_CARDINALITIES, make_dataset, make_keyed, name_group
from ranks import over_threads
from runs import train_over_threads

from ssmpi.data.batch import Batch
from ssmpi.data.features import GroupColumn
from ssmpi.data.reader import SplitReader
from ssmpi.runtime.mpi.waiting import WaitOptions
from ssmpi.runtime.topology import Topology
from ssmpi.tools import score
from ssmpi.trainer.group_scores import GroupScores, gauc


def by_user(users, scores, labels, nobody=(0, 1)):
    """GAUC and the share of the rows that it is over; users ``nobody`` are none."""
    weighted, rows = 0.0, 0
    for user in sorted(set(users) - set(nobody)):
        own, clicked = scores[users == user], labels[users == user] == 1
        if 0 < clicked.sum() < len(own):
            difference = own[clicked][:, None] - own[~clicked][None, :]
            weighted += len(own) * ((difference > 0).mean() + (difference == 0).mean() / 2)
            rows += len(own)
    return weighted / rows, rows / len(users)


def score_a_share(world, ids, logits, labels, *, keyed=False):
    """A body: each trainer has every third batch of 100 rows, on two threads."""
    if world.role != "trainer":
        return None
    threads = [GroupScores(GroupColumn(1, keyed)), GroupScores(GroupColumn(1, keyed))]
    for number, first in enumerate(range(0, len(ids), 100)):
        rows = slice(first, first + 100)
        if number % 3 == world.index:
            dense, none = np.empty((100, 0), np.float32), np.empty((100, 0), np.int32)
            batch = Batch(none, dense, labels[rows], ids[rows]) if keyed else Batch(ids[rows], dense, labels[rows])
            threads[number % 2].add(batch, logits[rows])
    return gauc(threads, len(ids), world.trainers, WaitOptions())


def test_trainers_agree_on_what_all_of_them_have_scored():
    draw = np.random.default_rng(3)
    ids = draw.integers(0, 40, (2_000, 3)).astype(np.int32)
    logits = draw.normal(size=2_000).round(1).astype(np.float32)
    labels = (draw.random(2_000) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    labels[ids[:, 1] == 7] = 0
    found = over_threads(Topology(3), score_a_share, ids, logits, labels)[:3]
    assert found == [found[0]] * 3
    expected = by_user(ids[:, 1], logits, labels)
    np.testing.assert_allclose((found[0]["gauc"], found[0]["gauc_share"]), expected, rtol=1e-12)


def test_keys_are_groups_by_all_their_bits():
    """Keys in pairs with the same low 32 bits, half of all negative; 0 is no key, and 1 is one."""
    draw = np.random.default_rng(4)
    users = np.concatenate([[0, 1], draw.integers(-(2**63), 2**63, 10)])
    users = np.concatenate([users, users[2:] ^ (1 << 40)])
    keys = users[draw.integers(0, len(users), (2_000, 3))]
    logits = draw.normal(size=2_000).round(1).astype(np.float32)
    labels = (draw.random(2_000) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    found = over_threads(Topology(3), partial(score_a_share, keyed=True), keys, logits, labels)[:3]
    assert found == [found[0]] * 3
    expected = by_user(keys[:, 1], logits, labels, nobody=(0,))
    np.testing.assert_allclose((found[0]["gauc"], found[0]["gauc_share"]), expected, rtol=1e-12)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Five features; users are groups."""
    folder, few = tmp_path_factory.mktemp("grouped"), {"cardinalities": FEW_CARDINALITIES, "features": FEW}
    return name_group(make_dataset(folder, 6_000, shard=200, **few), "user")


def users_and_labels(data, split):
    """Both of all rows of a split, in its order."""
    reader = SplitReader(data, split, 65536)
    blocks = [reader.read(block) for block in reader.blocks]
    return (np.concatenate(parts) for parts in zip(*((b.ids[:, 0], b.labels) for b in blocks), strict=True))


@pytest.mark.parametrize("keyed", [("user", "item"), pytest.param((), marks=pytest.mark.soak)], ids=["keys", "ids"])
def test_a_run_reports_it_and_evaluate_prints_it(data, keyed, tmp_path, alone, capsys):
    """Users 0 and 1 are none where ids are groups, and only 0 is where keys are."""
    users, labels = users_and_labels(data, "test")
    settings, nobody = (), (0, 1)
    if keyed:
        nobody = (0,)
        data = name_group(make_keyed(tmp_path / "keyed", data, keyed), "user")
        settings = ("embedding.dynamic.keys=500",)
    run = train_over_threads(
        tmp_path, data, "topology.trainers=2", "topology.threads=2", "sync.algorithm=ma", *settings
    )
    assert score.predict(run.folder, score.ScoringInput(data, "test", None), tmp_path / "scores") == 0
    expected, share = by_user(users, np.loadtxt(tmp_path / "scores"), labels, nobody)
    assert (run.quality()["gauc"], run.quality()["gauc_share"]) == pytest.approx((expected, share), abs=1e-6)
    assert 0.3 < share < 1
    capsys.readouterr()
    assert score.evaluate(run.folder, "test", None) == 0
    assert f", GAUC {expected:.5f} (of {share:.1%} of the rows)" in capsys.readouterr().out
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["gauc"] for line in lines if line.get("split") == "test"] == [run.quality()["gauc"]]


def test_rows_scored_ahead_are_grouped_within_their_part(data, tmp_path, alone):
    """Of a model that stands still, so that its scores of all parts are those in the end: each part has the GAUC of
    its own rows, and the whole run their mean by rows that have one.
    """
    run = train_over_threads(
        tmp_path, data, "topology.trainers=2", "topology.threads=2", "sync.algorithm=ma", "embedding.rate=0",
        "dense.rate=0", "schedule.warmup_examples=1",
        "evaluate.progressive=true", "evaluate.per_pass=3", "evaluate.split=none", "evaluate.final=none",
    )  # fmt: skip
    assert score.predict(run.folder, score.ScoringInput(data, "train", None), tmp_path / "scores") == 0
    scores, (users, labels) = np.loadtxt(tmp_path / "scores"), users_and_labels(data, "train")
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    windows = [line for line in lines if line["kind"] == "evaluation" and line["split"] == "progressive"]
    assert len(windows) == 3
    start, weighted, over = 0, 0.0, 0.0
    for window in windows:
        rows = slice(start, start := start + int(window["rows"]))
        expected, share = by_user(users[rows], scores[rows], labels[rows])
        assert (window["gauc"], window["gauc_share"]) == pytest.approx((expected, share), abs=1e-6)
        weighted, over = weighted + expected * share * window["rows"], over + share * window["rows"]
    found = run.result["evaluations"]["progressive"]
    assert start == found["whole"]["rows"] == len(users)
    assert found["last"]["gauc"] == windows[-1]["gauc"]
    assert (found["whole"]["gauc"], found["whole"]["rows_of_gauc"]) == pytest.approx((weighted / over, over), abs=1e-6)
    together, _ = by_user(users, scores, labels)
    assert abs(found["whole"]["gauc"] - together) > 1e-5, "pairs of rows of different parts do not count"
