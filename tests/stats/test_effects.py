from __future__ import annotations

import math

import numpy as np
import pytest

from fusion_eval.stats import cohen_d_paired, cohen_d_pooled, discordant, item_correlation, tost_p

A, B = np.array([1.0, 2.0, 4.0, 3.0]), np.array([1.5, 1.0, 2.0, 2.5])


def test_effect_sizes():
    d = A - B
    assert cohen_d_paired(A, B) == pytest.approx(d.mean() / d.std(ddof=1))
    pooled = math.sqrt((A.var(ddof=1) + B.var(ddof=1)) / 2)
    assert cohen_d_pooled(A, B) == pytest.approx(d.mean() / pooled)


def test_effects_without_variation():
    assert cohen_d_paired(B + 1, B) == math.inf
    assert cohen_d_paired(B, B + 0.3) == -math.inf
    assert cohen_d_paired(B, B) == 0.0
    assert cohen_d_pooled(np.ones(3), np.zeros(3)) == math.inf
    assert cohen_d_pooled(np.ones(3), np.ones(3)) == 0.0
    assert math.isnan(cohen_d_paired(A[:1], B[:1]))


def test_discordant_counts_only_for_zeros_and_ones():
    a, b = np.array([1.0, 1, 0, 1]), np.array([0.0, 1, 1, 0])
    assert discordant(a, b) == (2, 1)
    assert discordant(A, B) is None


def test_item_correlation():
    assert item_correlation(A, 2 * A + 1) == pytest.approx(1.0)
    assert math.isnan(item_correlation(A, np.ones(4)))


def test_tost_is_statsmodels():
    weightstats = pytest.importorskip("statsmodels.stats.weightstats")
    rng = np.random.default_rng(0)
    d = rng.normal(0.05, 0.4, 60)
    expected = weightstats.DescrStatsW(d).ttost_mean(-0.2, 0.2)[0]
    assert tost_p(d.mean(), d.std(ddof=1) / math.sqrt(60), 59, 0.2) == pytest.approx(expected)


def test_tost_needs_an_error():
    assert math.isnan(tost_p(0.0, math.nan, 5, 0.1))
    assert tost_p(0.0, 0.01, math.inf, 0.1) < 1e-6
    assert tost_p(0.2, 0.01, 50, 0.1) > 0.99
