"""Verdicts about equivalence: against textbook formulas, and against what random data with a known truth must give."""

import math

import numpy as np
import pytest

from jobs.lab.lockstep.equivalence import Comparison, holm, judge

MARGIN = 0.003


def comparison(differences, family="all", name="a against b"):
    return Comparison(family=family, name=name, differences=tuple(float(d) for d in differences))


def verdict(differences, margin=MARGIN):
    return judge([comparison(differences)], margin, 0.05)[0]


def test_the_interval_and_both_tests_are_those_of_the_textbook(stats):
    d = np.array([0.001, -0.002, 0.0005, 0.003, -0.001, 0.0015])
    error, t = d.std(ddof=1) / math.sqrt(6), stats.t(df=5)
    found = verdict(d)
    assert found.mean == pytest.approx(d.mean())
    assert found.interval == pytest.approx((d.mean() - t.ppf(0.975) * error, d.mean() + t.ppf(0.975) * error))
    assert found.p_different == pytest.approx(2 * t.sf(abs(d.mean()) / error))
    assert found.p_equal == pytest.approx(max(t.sf((d.mean() + MARGIN) / error), t.cdf((d.mean() - MARGIN) / error)))


def test_tost_decides_as_its_90_percent_interval_does(stats):
    rng = np.random.default_rng(1)
    for _ in range(100):
        d = rng.normal(0.0015, 0.003, 8)
        low, high = stats.ttest_1samp(d, 0.0).confidence_interval(0.90)
        assert verdict(d).equal == (low > -MARGIN and high < MARGIN)


@pytest.mark.parametrize(
    ("mean", "spread", "said"),
    [
        (0.0, 0.0005, "equal"),
        (0.001, 0.0005, "equal, but worse"),
        (-0.01, 0.002, "better"),
        (0.0, 0.02, "undecided"),
    ],
)
def test_what_is_said(mean, spread, said):
    d = np.random.default_rng(0).normal(size=20)
    assert verdict(mean + spread * (d - d.mean()) / d.std()).text == said


def test_equality_at_the_margin_is_claimed_at_most_at_the_level():
    rng = np.random.default_rng(2)
    wrong = sum(verdict(rng.normal(MARGIN, 0.001, 10)).equal for _ in range(1000))
    assert 30 <= wrong <= 70


def test_runs_without_any_spread_are_decided_too():
    assert verdict([0.0, 0.0, 0.0]).text == "equal"
    assert verdict([0.004, 0.004]).text == "worse"
    assert verdict([MARGIN, MARGIN]).text == "worse"


def test_holm_is_that_of_a_worked_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_a_family_is_corrected_by_itself():
    d = np.random.default_rng(3).normal(0.0008, 0.0015, 12)
    alone, first, *_ = judge([comparison(d, "alone"), *[comparison(d, "five") for _ in range(5)]], MARGIN, 0.05)
    assert first.p_equal == pytest.approx(5 * alone.p_equal)
    assert first.p_different == pytest.approx(min(1.0, 5 * alone.p_different))
