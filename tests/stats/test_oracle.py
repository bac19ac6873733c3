"""The peer's recorded numbers, and scipy's and statsmodels' on the same scores."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fusion_eval.stats import (
    auroc,
    bootstrap_interval,
    calibration_error,
    compare_scores,
    compare_values,
    crossed_means,
    interval_of,
    items_needed,
    label_metric,
    mcnemar_p,
    minimal_detectable_effect,
    run_test,
    sign_flip_p,
    standard_error,
    variance_of_runs,
)
from fusion_eval.stats.tables import summary_rows

TESTS = ("wilcoxon", "ttest_rel", "welch", "ttest_ind", "mannwhitney")
CORRECTIONS = ("holm", "bonferroni", "fdr_bh", "none")


def differing(found, recorded, tolerance, skip=()):
    """Columns of the recorded rows that ours do not reproduce."""
    wrong = []
    for ours, row in zip(found, recorded, strict=True):
        for name, value in row.items():
            if name in skip:
                continue
            mine = getattr(ours, name) if not isinstance(ours, dict) else ours[name]
            if mine != value and not (isinstance(value, float) and abs(mine - value) <= tolerance):
                wrong.append((row["metric"], name, mine, value))
    return wrong


def summaries(result):
    """Our summaries in the peer's order, metrics within methods."""
    rows = summary_rows(result, result.methods[0])
    return sorted(rows, key=lambda row: result.methods.index(row["method"]))


def tabled(section):
    """metric -> method -> value per seed."""
    return {metric: dict(zip(section["methods"], values, strict=True)) for metric, values in section["data"].items()}


@pytest.mark.parametrize("test", TESTS)
def test_every_test_over_seeds(oracle, test):
    section = oracle["two_methods"]
    result = compare_values(tabled(section), test=test)
    assert differing(result.comparisons, section["comparisons"][test], 1e-12) == []
    skip = () if test == "welch" else ("significant_vs_ref",)
    assert differing(summaries(result), section["summary"], 1e-12, skip) == []


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_every_correction(oracle, correction):
    section = oracle["three_methods"]
    result = compare_values(tabled(section), test="ttest_rel", correction=correction)
    assert differing(result.comparisons, section["comparisons"][correction], 1e-12) == []


def test_alpha_changes_the_mark_only(oracle):
    section = oracle["two_methods"]
    result = compare_values(tabled(section), test="ttest_rel", alpha=0.01)
    assert differing(result.comparisons, section["alpha_0.01"], 1e-12) == []


def item_cases(right, target):
    noisy = np.where(np.arange(len(target)) % 17 == 0, 0, right["mlp"])
    tens = (np.arange(len(target)) // 10).tolist()
    return {
        "runs": (right, {}),
        "runs_ttest_rel": (right, {"test": "ttest_rel"}),
        "runs_clustered": (right, {"clusters": tens}),
        "class_clusters_10": (right, {"clusters": target.tolist()}),
        "three_systems_holm": ({**right, "noisy": noisy}, {}),
    }


@pytest.mark.parametrize(
    "case", ["runs", "runs_ttest_rel", "runs_clustered", "class_clusters_10", "three_systems_holm"]
)
def test_item_columns_to_the_digit(oracle, right, digits, case):
    scores, arguments = item_cases(right, digits["target"])[case]
    result = compare_scores(scores, metric_name="accuracy", **{"test": "welch", **arguments})
    recorded = oracle["compare_scores"][case]
    # Three of the 10,000 resamples of ten clusters have a difference of exactly zero; the peer counts them by their
    # rounding noise, here they all count as opposite.
    ties = ("item_p", "item_p_corrected") if case == "class_clusters_10" else ()
    assert differing(result.comparisons, recorded["comparisons"], 1e-12, skip=ties) == []
    assert differing(summaries(result), recorded["summary"], 1e-12) == []
    if ties:
        peer = recorded["comparisons"][0]["item_p"]
        assert peer <= result.comparisons[0].item_p <= peer + 3 * 2 / 10_001


def test_one_run_is_compared_by_items_where_the_peer_gives_nan(oracle, right):
    one = {name: scores[0] for name, scores in right.items()}
    result = compare_scores(one, metric_name="accuracy")
    found, peer = result.comparisons[0], oracle["compare_scores"]["single_run"]["comparisons"][0]
    assert peer["p_value"] == "nan"
    assert found.item_p == pytest.approx(peer["item_p"], abs=1e-15)
    assert found.item_ci_low == pytest.approx(peer["item_ci_low"], abs=1e-15)
    assert found.p_value == pytest.approx(0.0052, abs=5e-4)
    assert (found.verdict, found.claim) == ("worse", "these checkpoints")
    assert (found.only_a, found.only_b) == (7, 22)


class TestReferenceStatistics:
    """scipy and statsmodels on the same per-item scores."""

    @pytest.fixture
    def reference(self, oracle):
        return oracle["reference_statistics"]

    def test_standard_errors(self, reference, difference):
        tens = np.arange(719) // 10
        assert standard_error(difference) == pytest.approx(reference["item_se"], rel=1e-12)
        corrected, raw = standard_error(difference, tens), standard_error(difference, tens, corrected=False)
        assert corrected == pytest.approx(reference["item_se_clustered_corrected"], rel=1e-12)
        assert raw == pytest.approx(reference["item_se_clustered_miller"], rel=1e-12)

    def test_paired_t(self, reference, right):
        items = run_test("ttest_rel", right["linear"].mean(0), right["mlp"].mean(0), "items", 0.95)
        seeds = run_test("ttest_rel", right["linear"].mean(1), right["mlp"].mean(1), "seeds", 0.95)
        for found, name in ((items, "item_paired_t"), (seeds, "seed_paired_t")):
            assert found.p == pytest.approx(reference[name]["p"], rel=1e-9)
            assert [found.low, found.high] == pytest.approx(reference[name]["ci"], rel=1e-9)

    def test_bca(self, reference, difference):
        items = bootstrap_interval(difference, resamples=9999)
        clustered = bootstrap_interval(difference, np.arange(719) // 10, resamples=9999)
        assert [items.low, items.high] == pytest.approx(reference["item_bca"], abs=1e-4)
        assert [clustered.low, clustered.high] == pytest.approx(reference["cluster_bca"], abs=1e-4)

    def test_sign_flip(self, reference, difference):
        p, floor = sign_flip_p(difference, 9999)
        assert p == pytest.approx(reference["item_sign_flip_p"], abs=4e-4)
        assert floor == pytest.approx(1e-4)

    def test_crossed(self, reference, right):
        draws = crossed_means(right["linear"] - right["mlp"], None, 20_000, 0)
        assert draws.std() == pytest.approx(reference["crossed_se"], rel=0.03)
        low, high = np.percentile(draws, [2.5, 97.5])
        assert [low, high] == pytest.approx(reference["crossed_seed_x_item_percentile_ci"], abs=2e-3)

    def test_variance_parts(self, reference, right):
        found = variance_of_runs(right["linear"] - right["mlp"])
        assert found.items == pytest.approx(reference["variance_of_mean"]["items"], rel=1e-9)
        assert found.seeds == pytest.approx(reference["variance_of_mean"]["seeds"], rel=1e-9)

    def test_mcnemar_and_wilson(self, reference, right):
        recorded = reference["mcnemar_exact_seed0"]
        p = mcnemar_p(recorded["only_a_right"], recorded["only_b_right"])
        assert p == pytest.approx(recorded["p"], rel=1e-12)
        found = interval_of(right["linear"][0])
        assert found.method == "wilson"
        assert [found.low, found.high] == pytest.approx(reference["wilson_ci_linear_seed0"], rel=1e-12)

    def test_power(self, reference, right, difference):
        assert minimal_detectable_effect(standard_error(difference)) == pytest.approx(reference["mde_80_items"])
        needed = items_needed(0.01, difference.std(ddof=1))
        assert needed == pytest.approx(reference["items_needed_for_1pp"], rel=1e-6)
        seeds = right["linear"].mean(1) - right["mlp"].mean(1)
        mde = minimal_detectable_effect(standard_error(seeds), df=4)
        assert mde == pytest.approx(reference["mde_80_seeds_n5"], rel=1e-6)

    def test_comparison_carries_them(self, reference, right):
        found = compare_scores(right).comparisons[0]
        assert found.item_correlation == pytest.approx(reference["item_corr"])
        assert found.mean_diff == pytest.approx(reference["mean_diff"])
        assert found.test == "crossed_t"
        # The pigeonhole bootstrap counts the rest variance more than once (Owen 2007): the t test is a little narrower.
        assert 0.85 * reference["crossed_se"] < found.stderr < reference["crossed_se"]


@pytest.mark.parametrize("method", ["linear", "mlp"])
def test_classification_metrics(oracle, digits, method):
    logits = digits[f"{method}_logits_seed0"].astype(np.float64)
    target = digits["target"].astype(np.int64)
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    ours = {
        "auroc": auroc(probabilities, target),
        "ece": calibration_error(probabilities, target),
        **{
            name: label_metric(name, logits.argmax(1), target, 10) for name in ("accuracy", "f1", "precision", "recall")
        },
    }
    section = oracle["two_methods"]
    row = section["methods"].index(method)
    for name, metric in ours.items():
        assert metric.value == pytest.approx(section["data"][name][row][0], abs=1e-6), name


def test_holm_out_of_reach_is_warned_about(oracle):
    rng = np.random.default_rng(0)
    values = np.array([[0.1], [0.5], [0.9]]) + rng.normal(0, 0.001, (3, 6))
    result = compare_values({"m": dict(zip("abc", values, strict=True))}, test="wilcoxon")
    recorded = oracle["known_defects"]["holm_makes_significance_unreachable_3x6_wilcoxon"]
    assert [c.p_corrected for c in result.comparisons] == pytest.approx(recorded["p_corrected"])
    assert recorded["warnings"] == []
    assert "0.0938" in result.warnings[0]
    assert "holm over 3" in result.warnings[0]


def test_constant_paired_difference_is_not_certain():
    result = compare_values({"m": {"a": [0.1, 0.2, 0.3], "b": [0.2, 0.3, 0.4]}}, test="ttest_rel")
    found = result.comparisons[0]
    assert found.p_value == 0.25
    assert not found.significant
    assert found.effect_size == -math.inf
