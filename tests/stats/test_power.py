from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from fusion_eval.errors import StatisticsError
from fusion_eval.stats import items_needed, items_needed_sampled, minimal_detectable_effect, power_of, smallest_p


@pytest.mark.parametrize("n", [5, 20, 200])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_statsmodels(n, alpha):
    power = pytest.importorskip("statsmodels.stats.power").TTestPower()
    effect = power.solve_power(nobs=n, alpha=alpha, power=0.8)
    assert minimal_detectable_effect(1 / math.sqrt(n), n - 1, alpha) == pytest.approx(effect, rel=1e-5)
    assert power_of(0.4, 1 / math.sqrt(n), n - 1, alpha) == pytest.approx(power.power(0.4, n, alpha), abs=1e-6)


def test_few_units_by_integration():
    """Where statsmodels' solver meets NaN: the definition of the noncentral t, integrated."""
    critical, shift = stats.t.ppf(0.995, 2), minimal_detectable_effect(1.0, 2, 0.01)

    def density(v):
        scale = critical * math.sqrt(v / 2)
        return (stats.norm.sf(scale - shift) + stats.norm.cdf(-scale - shift)) * stats.chi2.pdf(v, 2)

    assert integrate.quad(density, 0, 60)[0] == pytest.approx(0.8, abs=1e-5)


def test_power_by_simulation():
    draws = np.random.default_rng(0).normal(0.5, 1, (4000, 25))
    share = (stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05).mean()
    assert power_of(0.5, 0.2, 24) == pytest.approx(share, abs=0.02)


def test_strict_levels_do_not_break_the_solver():
    for alpha in (0.05 / 3, 0.05 / 45, 1e-6):
        mde = minimal_detectable_effect(1.0, 4, alpha)
        assert power_of(mde, 1.0, 4, alpha) == pytest.approx(0.8, abs=1e-6)


def test_unknown_error_has_no_detectable_effect():
    assert math.isnan(minimal_detectable_effect(math.nan, 5))
    assert math.isnan(minimal_detectable_effect(0.0, 5))


def test_items_needed():
    needed = items_needed(0.03, 0.4)
    assert power_of(0.03, 0.4 / math.sqrt(needed), needed - 1) == pytest.approx(0.8, abs=1e-9)
    assert items_needed(10.0, 0.01) == 2.0
    with pytest.raises(StatisticsError):
        items_needed(0.0, 1.0)


def test_millers_example():
    """Miller 2024, section 5: 3 points need about a thousand questions."""
    needed = items_needed_sampled(0.03, 1 / 9, (0.0, 0.0), (1, 1))
    assert needed == pytest.approx(969, abs=1)
    assert items_needed_sampled(0.03, 1 / 9, (0.1, 0.1), (10, 10)) == pytest.approx(needed * (1 / 9 + 0.02) * 9)


@pytest.mark.parametrize(
    ("test", "n", "floor"),
    [
        ("wilcoxon", 5, 0.0625),
        ("wilcoxon", 8, 0.0078125),
        ("mannwhitney", 3, 0.1),
        ("mannwhitney", 4, 2 / 70),
        ("mcnemar", 3, 0.25),
        ("mcnemar_midp", 3, 0.125),
        ("bootstrap", 9999, 2e-4),
        ("ttest_rel", 2, 0.0),
        ("wilcoxon", 0, 1.0),
    ],
)
def test_smallest_p(test, n, floor):
    assert smallest_p(test, n) == pytest.approx(floor)


@pytest.mark.parametrize("n", range(3, 9))
def test_floors_are_reached_by_the_best_case(n):
    best = np.arange(1.0, n + 1)
    assert stats.wilcoxon(best, np.zeros(n)).pvalue == pytest.approx(smallest_p("wilcoxon", n))
    assert stats.mannwhitneyu(best, -best).pvalue == pytest.approx(smallest_p("mannwhitney", n))
