from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fusion_eval.errors import StatisticsError
from fusion_eval.stats import clustered_t, interval_of, mcnemar_p, run_test, sign_flip_p
from fusion_eval.stats.paired import check_test, paired_proportions

RNG = np.random.default_rng(5)
A = RNG.normal(0.3, 1, 40)
B = A * 0.6 + RNG.normal(0, 0.7, 40)
ONES, ZEROS = np.ones(12), np.zeros(12)


@pytest.mark.parametrize(
    ("test", "reference"),
    [
        ("ttest_rel", stats.ttest_rel),
        ("wilcoxon", stats.wilcoxon),
        ("ttest_ind", stats.ttest_ind),
        ("welch", lambda a, b: stats.ttest_ind(a, b, equal_var=False)),
        ("mannwhitney", stats.mannwhitneyu),
    ],
)
def test_scipys_p(test, reference):
    assert run_test(test, A, B, "items", 0.95).p == pytest.approx(reference(A, B).pvalue, rel=1e-12)


@pytest.mark.parametrize("test", ["ttest_rel", "welch", "ttest_ind"])
def test_interval_excludes_zero_exactly_when_significant(test):
    for shift in np.linspace(0, 1.5, 16):
        found = run_test(test, A + shift, B, "items", 0.95)
        assert (found.p < 0.05) == (found.low > 0 or found.high < 0)
        assert found.stderr > 0


class TestSignFlips:
    def test_small_samples_are_enumerated(self):
        d = np.array([0.5, 1.25, -0.25, 2.0, 0.75])
        expected = stats.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
        assert sign_flip_p(d)[0] == pytest.approx(expected)

    def test_large_samples_agree_with_scipy(self):
        d = A - B
        reference = stats.permutation_test(
            (d,), np.mean, permutation_type="samples", n_resamples=20_000, rng=1, vectorized=True
        )
        assert sign_flip_p(d, 20_000)[0] == pytest.approx(reference.pvalue, abs=0.01)

    def test_few_values_agree_with_many(self):
        d = np.repeat([0.2, -0.2, 0.6, 0.0], [30, 18, 6, 100])
        nearly = d + np.where(d == 0, 0, RNG.normal(0, 1e-7, len(d)))
        assert sign_flip_p(d, 20_000)[0] == pytest.approx(sign_flip_p(nearly, 20_000)[0], abs=0.01)

    def test_zero_one_scores_are_mcnemars_test(self):
        a = np.repeat([1.0, 0.0, 1.0], [22, 7, 100])
        b = np.repeat([0.0, 1.0, 1.0], [22, 7, 100])
        p, floor = sign_flip_p(a - b)
        assert p == pytest.approx(mcnemar_p(22, 7))
        assert floor == 2 * 0.5**29

    def test_no_difference(self):
        assert sign_flip_p(np.zeros(5)) == (1.0, 1.0)


class TestMcNemar:
    def test_statsmodels(self):
        tables = pytest.importorskip("statsmodels.stats.contingency_tables")
        for only_a, only_b in ((7, 22), (0, 4), (3, 3), (1, 0)):
            expected = tables.mcnemar([[0, only_a], [only_b, 0]], exact=True).pvalue
            assert mcnemar_p(only_a, only_b) == pytest.approx(expected)

    def test_midp_by_its_definition(self):
        below = stats.binom.cdf(6, 29, 0.5)
        at = stats.binom.pmf(7, 29, 0.5)
        assert mcnemar_p(7, 22, midp=True) == pytest.approx(2 * (below + at / 2))
        assert mcnemar_p(3, 3, midp=True) == pytest.approx(1 - stats.binom.pmf(3, 6, 0.5) / 2)
        assert mcnemar_p(0, 0) == 1.0

    def test_bonett_and_price(self):
        """Newcombe's example: 50 pairs with 12 and 2 discordant ones."""
        a, b = np.repeat([1.0, 0, 1], [12, 2, 36]), np.repeat([0.0, 1, 1], [12, 2, 36])
        low, high, _ = paired_proportions(a, b, 0.95)
        first, second = 13 / 52, 3 / 52
        half = 1.959964 * math.sqrt((first + second - (first - second) ** 2) / 52)
        assert (low, high) == pytest.approx((first - second - half, first - second + half), abs=1e-6)

    def test_other_scores_are_refused(self):
        with pytest.raises(StatisticsError, match="permutation"):
            run_test("mcnemar", A, B, "items", 0.95)


class TestNoVariation:
    def test_all_or_nothing_is_a_sign_test(self):
        found = run_test("ttest_rel", ONES, ZEROS, "items", 0.95)
        assert found.p == 2 * 0.5**12
        assert 0.5 < found.low < found.high == 1.0
        assert "1 on all 12 items" in found.notes[0]

    def test_equal_scores(self):
        found = run_test("ttest_rel", ONES, ONES, "items", 0.95)
        assert found.p == 1.0
        assert found.low < 0 < found.high

    def test_a_constant_shift_of_rounded_numbers(self):
        found = run_test("ttest_rel", A + 0.1, A, "items", 0.95)
        assert found.p == 2 * 0.5**40
        assert math.isnan(found.low)

    @pytest.mark.parametrize("test", ["wilcoxon", "permutation", "ttest_rel"])
    def test_p_is_a_number_for_every_paired_test(self, test):
        assert run_test(test, ONES, ZEROS, "items", 0.95).p < 0.01
        assert run_test(test, ONES, ONES, "items", 0.95).p == 1.0

    def test_unpaired_tests_say_that_they_cannot(self):
        found = run_test("welch", ONES, ZEROS, "seeds", 0.95)
        assert math.isnan(found.p)
        assert "nothing to measure" in found.notes[0]


class TestClusters:
    CODES = np.repeat(np.arange(10), 4)

    def test_matches_the_interval_of_the_difference(self):
        found = clustered_t(A - B, self.CODES, 0.95)
        expected = interval_of(A - B, self.CODES)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
        assert found.df == 9
        assert (found.p < 0.05) == (found.low > 0 or found.high < 0)

    def test_equal_sizes_are_a_t_test_of_cluster_means(self):
        means = (A - B).reshape(10, 4).mean(axis=1)
        assert clustered_t(A - B, self.CODES, 0.95).p == pytest.approx(stats.ttest_1samp(means, 0).pvalue)

    def test_copies_do_not_help(self):
        ahead = A + 0.3
        once = run_test("ttest_rel", ahead, B, "items", 0.95)
        a, b, codes = np.repeat(ahead, 9), np.repeat(B, 9), np.repeat(np.arange(40), 9)
        assert run_test("ttest_rel", a, b, "items", 0.95).p < once.p / 100
        for test in ("ttest_rel", "wilcoxon", "permutation"):
            clustered = run_test(test, a, b, "items", 0.95, codes)
            assert clustered.p == pytest.approx(run_test(test, ahead, B, "items", 0.95).p, rel=0.15, abs=2e-3)
            assert clustered.unit == "clusters"

    def test_constant_cluster_means(self):
        found = clustered_t(np.full(40, 0.25), self.CODES, 0.95)
        assert found.p == 2 * 0.5**10

    @pytest.mark.parametrize("test", ["welch", "mcnemar", "mannwhitney"])
    def test_others_are_refused(self, test):
        with pytest.raises(StatisticsError, match="clusters"):
            run_test(test, A, B, "items", 0.95, self.CODES)


def test_unknown_test_lists_the_choices():
    with pytest.raises(StatisticsError, match="mannwhitney") as error:
        check_test("wilcox")
    assert "Did you mean 'wilcoxon'" in str(error.value)
