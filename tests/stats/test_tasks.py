from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fusion_eval.errors import StatisticsError
from fusion_eval.stats import compare_tasks, critical_difference, friedman, interquartile_mean
from fusion_eval.stats.tasks import probability_of_improvement

RNG = np.random.default_rng(1)
HARD = RNG.random(12)
TABLE = {
    name: HARD + skill + RNG.normal(0, 0.05, 12) for name, skill in (("a", 0), ("b", 0.1), ("c", 0.3), ("d", 0.31))
}


def test_friedman_is_scipys():
    assert compare_tasks(TABLE).friedman_p == pytest.approx(stats.friedmanchisquare(*TABLE.values()).pvalue)
    assert friedman(np.ones((3, 5))) == 1.0
    assert math.isnan(friedman(np.ones((2, 5))))


@pytest.mark.parametrize(("methods", "quantile"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_demsars_table_of_critical_values(methods, quantile):
    expected = quantile * math.sqrt(methods * (methods + 1) / (6 * 14))
    assert critical_difference(methods, 14) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("posthoc", ["nemenyi", "conover"])
def test_scikit_posthocs(posthoc):
    package = pytest.importorskip("scikit_posthocs")
    function = {"nemenyi": package.posthoc_nemenyi_friedman, "conover": package.posthoc_conover_friedman}[posthoc]
    expected = np.asarray(function(np.stack(list(TABLE.values())).T))
    found = compare_tasks(TABLE, posthoc=posthoc, correction="none").p_values
    assert found == pytest.approx(expected, abs=2e-3)


def test_groups_and_verdicts_agree_with_the_critical_difference():
    found = compare_tasks(TABLE)
    for i, a in enumerate(found.methods):
        for j, b in enumerate(found.methods):
            far = abs(found.mean_ranks[i] - found.mean_ranks[j]) > found.critical_difference
            assert far == (found.verdict(a, b) != "inconclusive")
            together = any(i in group and j in group for group in found.groups)
            assert far != together
    assert found.verdict("d", "a") == "better"
    assert found.verdict("a", "d") == "worse"
    assert found.claim == "other tasks"
    low, high = found.rank_draws[0]
    assert low <= found.mean_ranks[0] <= high


def test_direction():
    up, down = compare_tasks(TABLE), compare_tasks(TABLE, higher_is_better=False)
    assert np.argmin(up.mean_ranks) != np.argmin(down.mean_ranks)
    assert up.mean_ranks == pytest.approx([5 - rank for rank in down.mean_ranks])


def test_wilcoxon_posthoc_is_corrected():
    found = compare_tasks(TABLE, posthoc="wilcoxon")
    raw = stats.wilcoxon(TABLE["a"], TABLE["d"]).pvalue
    assert raw < found.p_values[0, 3] <= 6 * raw
    assert (found.p_values == found.p_values.T).all()


def test_too_few_tasks():
    few = {name: values[:4] for name, values in TABLE.items()}
    assert "only 4 tasks" in compare_tasks(few).warnings[0]
    assert any("cannot fall below p=0.75" in text for text in compare_tasks(few, posthoc="wilcoxon").warnings)
    with pytest.raises(StatisticsError, match="1 task"):
        compare_tasks({"a": [0.1], "b": [0.2]})
    with pytest.raises(StatisticsError, match="nemenyi"):
        compare_tasks(TABLE, posthoc="dunn")


def test_aggregates():
    assert interquartile_mean([0, 1, 2, 3, 4, 5, 6, 100]) == pytest.approx(3.5)
    a, b = np.array([[1.0, 1.0], [2.0, 1.0]]), np.array([[0.0, 1.0], [1.5, 1.0]])
    assert probability_of_improvement(a, b) == pytest.approx((0.75 + 0.5) / 2)
