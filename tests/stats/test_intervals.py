from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fusion_eval.errors import StatisticsError
from fusion_eval.stats import interval_of, standard_error, wilson


@settings(deadline=None)
@given(st.integers(1, 400), st.data(), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_is_scipys(n, data, level):
    k = data.draw(st.integers(0, n))
    reference = stats.binomtest(k, n).proportion_ci(level, method="wilson")
    assert wilson(k, n, level) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_wilson_is_statsmodels():
    proportion = pytest.importorskip("statsmodels.stats.proportion")
    for k, n in ((0, 5), (5, 5), (3, 7), (638, 719)):
        assert wilson(k, n) == pytest.approx(proportion.proportion_confint(k, n, method="wilson"), abs=1e-12)


def test_wilson_touches_its_ends_exactly():
    assert wilson(0, 7)[0] == 0.0
    assert wilson(7, 7)[1] == 1.0
    assert 0 < wilson(0, 7)[1] < 1
    assert 0 < wilson(7, 7)[0] < 1


def test_binary_scores_get_wilson():
    found = interval_of([1, 0, 1, 1] * 10)
    assert found.method == "wilson"
    assert (found.low, found.high) == wilson(30, 40)
    assert found.stderr == pytest.approx(np.std([1, 0, 1, 1] * 10, ddof=1) / math.sqrt(40))
    assert found.notes == ()


def test_other_scores_get_t():
    scores = np.random.default_rng(0).normal(size=30)
    found, reference = interval_of(scores), stats.ttest_1samp(scores, 0).confidence_interval(0.95)
    assert found.method == "t"
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))


def test_clusters_of_one_item_change_nothing_but_the_name():
    scores = np.random.default_rng(0).normal(size=30)
    alone, clustered = interval_of(scores), interval_of(scores, np.arange(30))
    assert clustered.method == "clustered t"
    assert (clustered.low, clustered.high) == pytest.approx((alone.low, alone.high))


def test_clustered_error_is_statsmodels():
    api = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(0)
    scores, codes = rng.normal(size=60), rng.integers(0, 12, 60)
    fit = api.OLS(scores, np.ones(60)).fit(cov_type="cluster", cov_kwds={"groups": codes, "use_correction": True})
    assert standard_error(scores, codes) == pytest.approx(fit.bse[0], rel=1e-12)


def test_copied_items_do_not_narrow_a_clustered_interval():
    scores = (np.random.default_rng(0).random(40) < 0.7).astype(float)
    once = interval_of(scores)
    copied = np.repeat(scores, 25)
    naive, clustered = interval_of(copied), interval_of(copied, np.repeat(np.arange(40), 25))
    assert naive.high - naive.low < 0.25 * (once.high - once.low)
    assert clustered.high - clustered.low == pytest.approx(once.high - once.low, rel=0.06)
    assert clustered.n_clusters == 40


def test_clustered_proportions_stay_within_bounds():
    found = interval_of(np.ones(30), np.repeat(np.arange(3), 10))
    assert found.high == 1.0
    assert 0 <= found.low < 0.6
    assert "3 clusters" in found.notes[0]


def test_few_items_are_marked():
    assert "only 4 items" in interval_of([1, 0, 1, 1]).notes[0]
    assert "only 3 items" in interval_of([0.1, 0.2, 0.4]).notes[0]


def test_one_score_has_no_interval_unless_it_is_a_proportion():
    found = interval_of([0.3])
    assert math.isnan(found.low)
    assert found.notes
    assert interval_of([1]).low == pytest.approx(wilson(1, 1)[0])


def test_equal_scores_are_marked():
    found = interval_of([0.1] * 30)
    assert found.stderr == 0.0
    assert "0.1" in found.notes[0]


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([], "no scores"),
        ([1, float("nan"), 0], "first at index [1]"),
        ([1, float("inf")], "1 of 2"),
        (["a", "b"], "not an array of numbers"),
        ([[1, 2], [3, 4]], "shape (2, 2)"),
        ([None, 1.0], "not an array of numbers"),
    ],
)
def test_bad_scores(scores, words):
    with pytest.raises(StatisticsError) as error:
        interval_of(scores)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("clusters", "words"),
    [
        ([0, 1], "2 labels for 3 items"),
        ([0, None, 1], "item 1"),
        ([0, float("nan"), 1], "item 1"),
        (["a"] * 3, "share"),
    ],
)
def test_bad_clusters(clusters, words):
    with pytest.raises(StatisticsError) as error:
        interval_of([1, 0, 1], clusters)
    assert words in str(error.value)


def test_cluster_labels_may_be_anything_hashable():
    mixed = interval_of([1, 0, 1, 1], ["a", 1, "a", (2,)])
    assert mixed.n_clusters == 3


def test_bad_level():
    with pytest.raises(StatisticsError, match=r"such as 0\.95"):
        interval_of([1, 0], level=95)
