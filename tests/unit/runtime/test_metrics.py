"""Streamed metrics against scikit-learn and against formulas by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssmpi.runtime.quality import Quality, entropy
from ssmpi.trainer.metrics.fields import describe


def draw(rows, seed=0, spread=2.0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(-1.0, spread, rows).astype(np.float32)
    labels = (generator.random(rows) < probabilities(logits)).astype(np.float32)
    return logits, labels


def quality_of(logits, labels):
    quality = Quality()
    quality.add(logits, labels)
    return quality


def probabilities(logits):
    return 1 / (1 + np.exp(-np.clip(logits.astype(float), -700, 700)))


@settings(max_examples=30)
@given(st.integers(2, 3_000), st.integers(0, 999), st.sampled_from([0.01, 0.5, 3.0, 40.0]))
def test_against_scikit_learn(metrics, rows, seed, spread):
    logits, labels = draw(rows, seed, spread)
    labels[:2] = 0, 1
    logits = np.clip(logits, -15, 15)  # beyond this 1 - p loses its digits in the reference
    found, p = quality_of(logits, labels).compute(), probabilities(logits)
    assert found["log_loss"] == pytest.approx(metrics.log_loss(labels, p), rel=1e-7)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(labels, logits >= 0))
    assert abs(found["auc"] - metrics.roc_auc_score(labels, logits)) <= found["auc_error"] + 1e-12
    base = labels.mean(dtype=float)
    assert found["ne"] == pytest.approx(found["log_loss"] / entropy(base), rel=1e-7)
    assert found["calibration"] == pytest.approx(p.sum() / labels.sum(dtype=float), rel=1e-6)


def test_the_stated_error_of_auc_is_small_where_it_matters():
    found = quality_of(*draw(50_000)).compute()
    assert found["auc_error"] < 2e-4


def test_equal_scores_are_no_information():
    labels = np.array([0, 1, 0, 1], np.float32)
    assert quality_of(np.zeros(4, np.float32), labels).compute()["auc"] == 0.5


def test_predicting_the_mean_has_ne_one():
    labels = np.array([0, 0, 0, 1], np.float32)
    found = quality_of(np.full(4, math.log(0.25 / 0.75), np.float32), labels).compute()
    assert found["ne"] == pytest.approx(1.0, rel=1e-6)
    assert found["calibration"] == pytest.approx(1.0, rel=1e-6)


@settings(max_examples=30)
@given(st.integers(1, 500), st.lists(st.integers(0, 500), max_size=5))
def test_parts_add_up_to_the_whole(rows, cuts):
    logits, labels = draw(rows)
    whole, merged = quality_of(logits, labels), Quality()
    edges = sorted({0, rows, *(min(cut, rows) for cut in cuts)})
    for start, stop in zip(edges, edges[1:], strict=False):
        merged.merge(quality_of(logits[start:stop], labels[start:stop]))
    np.testing.assert_array_equal(merged.histogram, whole.histogram)
    np.testing.assert_allclose(merged.sums, whole.sums, rtol=1e-12)


def test_nothing_scored_has_no_metrics():
    assert all(math.isnan(value) for value in Quality().compute().values())


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_kind_of_label_has_loss_but_neither_auc_nor_ne(label):
    found = quality_of(np.zeros(3, np.float32), np.full(3, label, np.float32)).compute()
    assert found["log_loss"] == pytest.approx(math.log(2))
    assert math.isnan(found["auc"])
    assert math.isnan(found["ne"])


@pytest.mark.parametrize("logit", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_not_finite_is_noticed(logit):
    assert math.isnan(Quality().add(np.array([0, logit], np.float32), np.array([1, 1], np.float32)))


def test_large_logits_neither_overflow_nor_vanish():
    found = quality_of(np.array([1e4, -1e4, 80], np.float32), np.array([1, 0, 0], np.float32)).compute()
    assert found["log_loss"] == pytest.approx(80 / 3)


@pytest.mark.parametrize("label", [0, 1])
def test_labels_that_are_all_equal_are_given_as_the_reason_for_nan(label):
    labels = np.full(9, label, np.float32)
    found = describe({**quality_of(np.zeros(9, np.float32), labels).compute(), "rows": 9.0})
    assert "NE nan" in found
    assert found.endswith(
        "; all labels of these rows are equal, so NE and AUC are not defined: score rows with both labels"
    )
    labels[0] = 1 - label
    assert "equal" not in describe({**quality_of(np.zeros(9, np.float32), labels).compute(), "rows": 9.0})
