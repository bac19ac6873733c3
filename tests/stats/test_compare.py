from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

from fusion_eval.errors import StatisticsError
from fusion_eval.stats import (
    Scores,
    auroc,
    calibration_error,
    compare_metrics,
    compare_scores,
    compare_values,
    label_metric,
    run_test,
)

RNG = np.random.default_rng(21)
HARD = RNG.random(600)


def answers(skill, seed):
    """0/1 scores on items of one shared difficulty."""
    return ((skill + 0.25 * np.random.default_rng(seed).normal(size=600)) > HARD).astype(float)


MODELS = {"base": answers(0.55, 1), "merged": answers(0.72, 2), "twin": answers(0.72, 3)}


def metrics_of(names=("base", "merged"), runs=1, num_classes=4):
    """F1, AUROC and calibration error of made-up classifiers on one target."""
    target = np.random.default_rng(0).integers(0, num_classes, 300)
    tables = {}
    for i, name in enumerate(names):
        for run in range(runs):
            noise = np.random.default_rng([i, run]).normal(size=(300, num_classes))
            odds = np.exp(noise + (1 + i) * np.eye(num_classes)[target])
            tables.setdefault(name, []).append(odds / odds.sum(axis=1, keepdims=True))
    return [
        Scores.from_metrics(
            "f1", {n: [label_metric("f1", p.argmax(1), target, num_classes) for p in t] for n, t in tables.items()}
        ),
        Scores.from_metrics("auroc", {n: [auroc(p, target) for p in t] for n, t in tables.items()}),
        Scores.from_metrics("ece", {n: [calibration_error(p, target) for p in t] for n, t in tables.items()}),
    ]


class TestDeterministicMethods:
    """One checkpoint per method, as most merges are: items speak, and nothing is NaN."""

    @pytest.mark.parametrize(
        "test", ["auto", "ttest_rel", "wilcoxon", "permutation", "mcnemar", "mcnemar_midp", "bootstrap", "welch"]
    )
    def test_every_test_gives_numbers(self, test):
        result = compare_scores(MODELS, metric_name="accuracy", test=test)
        for found in result.comparisons:
            numbers = (found.p_value, found.p_corrected, found.ci_low, found.ci_high, found.item_p, found.mde)
            assert all(math.isfinite(number) for number in numbers)
            assert (found.unit, found.claim, found.n_units) == ("items", "these checkpoints", 600)

    def test_the_default_is_a_paired_t_over_items(self):
        found = compare_scores(MODELS).comparisons[0]
        assert found.test == "ttest_rel"
        assert found.p_value == run_test("ttest_rel", MODELS["base"], MODELS["merged"], "items", 0.95).p

    def test_copied_seeds_are_no_evidence(self):
        copied = {name: np.stack([scores] * 5) for name, scores in MODELS.items()}
        once, again = compare_scores(MODELS), compare_scores(copied)
        for first, second in zip(once.comparisons, again.comparisons, strict=True):
            assert second.p_value == pytest.approx(first.p_value)
            assert second.claim == "these checkpoints"
            assert "identical over all 5 runs" in second.notes[-1]

    def test_identical_models(self):
        found = compare_scores({"a": MODELS["base"], "b": MODELS["base"]}).comparisons[0]
        assert found.p_value == 1.0
        assert found.verdict == "inconclusive"
        assert found.ci_low < 0 < found.ci_high

    def test_identical_models_are_equivalent_within_a_rope(self):
        found = compare_scores({"a": MODELS["base"], "b": MODELS["base"]}, rope=0.02).comparisons[0]
        assert found.verdict == "equivalent"

    def test_all_or_nothing(self):
        found = compare_scores({"a": np.ones(30), "b": np.zeros(30)}).comparisons[0]
        assert found.item_p == found.p_value == 2 * 0.5**30
        assert found.verdict == "better"
        assert 0.8 < found.item_ci_low < found.item_ci_high


class TestVerdicts:
    def test_direction(self):
        up = compare_scores(MODELS).comparison("score", "base", "merged")
        down = compare_scores(MODELS, higher_is_better=False).comparison("score", "base", "merged")
        assert (up.verdict, down.verdict) == ("worse", "better")
        assert up.item_verdict == "worse"

    def test_not_significant_is_not_equal(self):
        found = compare_scores(MODELS).comparison("score", "merged", "twin")
        assert found.verdict == "inconclusive"
        assert found.mde > 0.02
        assert "could have been found" in str(found)

    def test_rope(self):
        wide = compare_scores(MODELS, rope=0.5)
        assert {found.verdict for found in wide.comparisons} == {"equivalent"}
        narrow = compare_scores(MODELS, rope=0.01).comparison("score", "base", "merged")
        assert narrow.verdict == "worse"
        assert narrow.equivalence_p > 0.99

    def test_correction_can_change_the_verdict(self):
        scores = {f"m{i}": (RNG.random(300) < 0.6).astype(float) for i in range(8)}
        plain = compare_scores(scores, correction="none", alpha=0.2)
        held = compare_scores(scores, correction="bonferroni", alpha=0.2)
        assert sum(f.significant for f in plain.comparisons) > sum(f.significant for f in held.comparisons)
        assert held.comparisons[0].family_size == 28
        assert held.comparisons[0].mde > plain.comparisons[0].mde

    def test_sentence_says_all_of_it(self):
        text = str(compare_scores(MODELS, metric_name="accuracy").comparisons[0])
        for part in (
            "accuracy: base is worse than merged",
            "95% interval",
            "after holm over 3",
            "for these checkpoints",
        ):
            assert part in text


class TestFamilies:
    def test_per_metric_or_all_together(self):
        measured = [Scores.from_items(name, MODELS) for name in ("first", "second")]
        apart, together = compare_metrics(measured), compare_metrics(measured, family="all")
        assert {found.family_size for found in apart.comparisons} == {3}
        assert {found.family_size for found in together.comparisons} == {6}
        pairs = zip(apart.comparisons, together.comparisons, strict=True)
        assert all(a.p_corrected <= b.p_corrected for a, b in pairs)

    def test_a_reference_makes_the_family_small(self):
        result = compare_scores(MODELS, reference="base")
        assert [(found.method_a, found.method_b) for found in result.comparisons] == [
            ("merged", "base"),
            ("twin", "base"),
        ]
        assert result.comparisons[0].verdict == "better"
        assert result.comparisons[0].family_size == 2
        assert result.summaries[0].rank_low is None

    def test_unreachable_significance_is_warned_about(self):
        few = {name: np.r_[1.0, scores[:24]] for name, scores in MODELS.items()}
        few["b"] = few["base"].copy()
        few["b"][:2] = 1 - few["b"][:2]
        result = compare_scores(few, test="mcnemar")
        assert any("mcnemar over 25 items cannot fall below p=0.5" in text for text in result.warnings)

    def test_too_few_resamples_for_a_large_family(self):
        scores = {f"m{i}": RNG.random(50) for i in range(9)}
        result = compare_scores(scores, test="bootstrap", resamples=200)
        assert any("holm over 36 tests makes 0.358" in text for text in result.warnings)


class TestSeveralRuns:
    RUNS: ClassVar = {
        name: np.stack([answers(skill + shift, [i, seed]) for seed, shift in enumerate((-0.03, 0.0, 0.02, 0.01))])
        for i, (name, skill) in enumerate((("base", 0.55), ("merged", 0.62)))
    }

    def test_default_covers_the_recipe(self):
        found = compare_scores(self.RUNS).comparisons[0]
        assert (found.test, found.unit, found.claim) == ("crossed_t", "seeds x items", "the recipe")
        assert found.crossed_ci_low < found.mean_diff < found.crossed_ci_high
        assert found.ci_high - found.ci_low > found.item_ci_high - found.item_ci_low

    def test_units_can_be_chosen(self):
        seeds = compare_scores(self.RUNS, test="ttest_rel").comparisons[0]
        items = compare_scores(self.RUNS, test="ttest_rel", unit="items").comparisons[0]
        assert (seeds.unit, seeds.n_units, seeds.claim) == ("seeds", 4, "the recipe on these items")
        assert (items.unit, items.n_units, items.claim) == ("items", 600, "these checkpoints")

    def test_clusters_widen_the_interval(self):
        plain = compare_scores(self.RUNS).comparisons[0]
        order = np.argsort(HARD)
        clusters = np.empty(600, dtype=int)
        clusters[order] = np.arange(600) // 30
        found = compare_scores(self.RUNS, clusters=clusters).comparisons[0]
        assert found.n_clusters == 20
        assert found.stderr > plain.stderr
        assert found.item_ci_high - found.item_ci_low > plain.item_ci_high - plain.item_ci_low

    def test_averaged_runs_are_no_zeros_and_ones(self):
        with pytest.raises(StatisticsError, match="mcnemar"):
            compare_scores(self.RUNS, test="mcnemar")


class TestClusters:
    def test_one_run(self):
        result = compare_scores(MODELS, clusters=np.arange(600) // 12)
        found = result.comparisons[0]
        assert (found.unit, found.n_units, found.n_clusters) == ("clusters", 50, 50)
        assert found.df == 49
        assert result.warnings == ("score: 50 clusters, fewer than 300: check close calls with test='permutation'",)

    def test_few_clusters_are_warned_about(self):
        result = compare_scores(MODELS, clusters=np.arange(600) // 60)
        assert "only 10 clusters" in result.warnings[0]

    def test_metrics_must_share_the_items(self):
        other = {name: scores[:500] for name, scores in MODELS.items()}
        measured = [Scores.from_items("a", MODELS), Scores.from_items("b", other)]
        assert len(compare_metrics(measured).comparisons) == 6
        with pytest.raises(StatisticsError, match="a has 600 items, b has 500"):
            compare_metrics(measured, clusters=np.arange(600))

    def test_wrong_length(self):
        with pytest.raises(StatisticsError, match="2 labels for 600 items"):
            compare_scores(MODELS, clusters=[0, 1])


class TestMetricsThatAreNoMean:
    def test_one_run(self):
        result = compare_metrics(metrics_of())
        assert result.metrics == ("f1", "auroc", "ece")
        for found in result.comparisons:
            assert (found.test, found.claim) == ("bootstrap", "these checkpoints")
            assert found.item_ci_low == found.ci_low < found.mean_diff < found.ci_high
        assert [found.verdict for found in result.comparisons][:2] == ["worse", "worse"]
        assert not result.comparisons[2].higher_is_better

    def test_named_tests_fall_back_to_the_bootstrap_and_say_so(self):
        found = compare_metrics(metrics_of(), test="wilcoxon").comparisons[0]
        assert found.test == "bootstrap"
        assert "instead of wilcoxon" in found.notes[0]

    def test_several_runs(self):
        result = compare_metrics(metrics_of(runs=4), resamples=1000)
        found = result.comparison("f1", "base", "merged")
        assert (found.test, found.claim) == ("crossed_t", "the recipe")
        assert found.crossed_ci_low < found.mean_diff < found.crossed_ci_high
        by_seeds = compare_metrics(metrics_of(runs=4), test="ttest_rel", resamples=500).comparison(
            "f1", "base", "merged"
        )
        assert by_seeds.claim == "the recipe on these items"

    def test_bca_and_clusters(self):
        result = compare_metrics(metrics_of(), interval="bca", clusters=np.arange(300) // 5, resamples=1000)
        found = result.comparisons[0]
        assert (found.unit, found.n_units) == ("clusters", 60)
        assert found.ci_low < found.mean_diff < found.ci_high

    def test_absent_classes_are_warned_about(self):
        target = np.zeros(60, dtype=int)
        target[:20] = 1
        scores = {n: auroc(np.random.default_rng(i).random((60, 3)), target) for i, n in enumerate("ab")}
        result = compare_metrics([Scores.from_metrics("auroc", scores)])
        assert result.warnings[0] == "auroc: mean over 2 of 3 classes; no target for 2"

    def test_a_mean_in_both_forms_agrees(self):
        from fusion_eval.stats import mean_metric

        items = compare_scores(MODELS, test="bootstrap", metric_name="m").comparisons
        metrics = {name: mean_metric("m", scores) for name, scores in MODELS.items()}
        functions = compare_metrics([Scores.from_metrics("m", metrics)]).comparisons
        for a, b in zip(items, functions, strict=True):
            assert (a.ci_low, a.ci_high, a.p_value) == pytest.approx((b.ci_low, b.ci_high, b.p_value), abs=1e-12)


class TestValuesOnly:
    def test_one_value_each_is_nothing_to_test(self):
        with pytest.raises(StatisticsError, match="nothing to test"):
            compare_values({"accuracy": {"a": [0.5], "b": [0.6]}})

    def test_one_value_beside_metrics_with_items_is_marked_not_refused(self):
        alone = Scores.from_values("map", {name: [0.5] for name in MODELS})
        result = compare_metrics([Scores.from_items("accuracy", MODELS), alone])
        found = result.comparison("map", "base", "merged")
        assert (found.verdict, found.test) == ("inconclusive", "none")
        assert "nothing to test" in found.notes[0]
        assert math.isnan(found.p_value)
        assert result.comparison("accuracy", "base", "merged").family_size == 3

    def test_bootstrap_needs_items(self):
        with pytest.raises(StatisticsError, match="no per-item scores"):
            compare_values({"accuracy": {"a": [0.5, 0.6], "b": [0.6, 0.6]}}, test="bootstrap")

    def test_items_asked_for(self):
        with pytest.raises(StatisticsError, match="unit='items'"):
            compare_values({"accuracy": {"a": [0.5, 0.6], "b": [0.6, 0.6]}}, unit="items")

    def test_direction_per_metric(self):
        values = {"loss": {"a": [0.1, 0.11, 0.12, 0.1], "b": [0.5, 0.52, 0.54, 0.5]}}
        found = compare_values(values, higher_is_better={"loss": False}).comparisons[0]
        assert (found.test, found.verdict, found.claim) == ("ttest_rel", "better", "the recipe on these items")
        assert math.isnan(found.item_p)
        assert found.item_verdict == ""


class TestBadInput:
    def test_unknown_reference(self):
        with pytest.raises(StatisticsError, match="Did you mean 'base'"):
            compare_scores(MODELS, reference="bsae")
        with pytest.raises(StatisticsError, match="one of base, merged, twin"):
            compare_scores(MODELS).summary(reference="zzz")

    def test_metric_twice_and_other_methods(self):
        first = Scores.from_items("m", MODELS)
        with pytest.raises(StatisticsError, match="given twice"):
            compare_metrics([first, first])
        other = Scores.from_items("n", {"x": MODELS["base"], "y": MODELS["twin"]})
        with pytest.raises(StatisticsError, match="as for m"):
            compare_metrics([first, other])

    def test_no_metric(self):
        with pytest.raises(StatisticsError, match="no metrics"):
            compare_metrics([])

    def test_unknown_argument(self):
        with pytest.raises(StatisticsError, match="'alpha'"):
            compare_scores(MODELS, alfa=0.1)

    def test_unpaired_tests_on_shared_items_are_noted(self):
        found = compare_scores(MODELS, test="welch").comparisons[0]
        assert "ignores that both methods were scored on the same items" in found.notes[0]

    def test_few_items(self):
        result = compare_scores({"a": [1, 0, 1, 1, 0.0], "b": [0, 0, 1, 0, 1.0]})
        assert "only 5 items" in result.warnings[0]


def test_bca_columns():
    percentile, bca = compare_scores(MODELS), compare_scores(MODELS, interval="bca")
    for a, b in zip(percentile.comparisons, bca.comparisons, strict=True):
        assert a.item_p == b.item_p
        assert b.item_ci_low == pytest.approx(a.item_ci_low, abs=0.01)


def test_receipt():
    result = compare_metrics([Scores.from_items("m", MODELS)], receipt={"data": "sha256:0"})
    assert result.receipt["data"] == "sha256:0"
    assert result.receipt["rng"] == "numpy PCG64"
    assert set(result.receipt["versions"]) == {"numpy", "scipy"}


def test_one_item_leaves_the_seeds():
    items = np.array([[[1.0], [0.9], [1.1]], [[0.5], [0.6], [0.7]]])
    one = Scores("score", ("a", "b"), items[:, :, 0], items, None, True, (0, 1, 2), 1)
    found = compare_metrics([one]).comparisons[0]
    assert found.unit == "seeds"
    assert found.claim.startswith("the recipe on these items")
    assert found.p_value == pytest.approx(stats.ttest_rel(items[0, :, 0], items[1, :, 0]).pvalue)
