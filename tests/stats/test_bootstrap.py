from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fusion_eval.errors import StatisticsError
from fusion_eval.stats import (
    ItemMetric,
    auroc,
    bootstrap_interval,
    calibration_error,
    interval_of_metric,
    label_metric,
    mean_metric,
    regression_metric,
)
from fusion_eval.stats.bootstrap import bca_interval, bootstrap_p, jackknife_metric, jackknife_stderr

RNG = np.random.default_rng(11)
SCORES = RNG.exponential(size=80)


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_scipys_digits(method):
    name = {"percentile": "percentile", "bca": "BCa"}[method]
    expected = stats.bootstrap((SCORES,), np.mean, n_resamples=3000, rng=0, method=name).confidence_interval
    found = bootstrap_interval(SCORES, method=method, resamples=3000)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-10)


def test_cluster_bootstrap_is_scipys():
    codes = np.repeat(np.arange(16), 5)
    sums, sizes = np.bincount(codes, weights=SCORES), np.bincount(codes).astype(float)

    def ratio(s, k, axis=-1):
        return s.sum(axis=axis) / k.sum(axis=axis)

    expected = stats.bootstrap((sums, sizes), ratio, paired=True, n_resamples=3000, rng=0, method="BCa")
    found = bootstrap_interval(SCORES, codes, resamples=3000)
    ends = expected.confidence_interval
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high), abs=1e-10)
    assert "16 clusters" in found.notes[0]


def test_bca_moves_towards_the_long_tail():
    percentile = bootstrap_interval(SCORES, method="percentile")
    bca = bootstrap_interval(SCORES, method="bca")
    assert bca.high > percentile.high


def test_bca_without_spread_falls_back():
    assert bca_interval(np.full(100, 2.0) + 1.0, 5.0, 0.0) == (3.0, 3.0)


@pytest.mark.parametrize(
    ("draws", "observed", "p"), [([1, 1, 1, 1], 1, 0.4), ([1, 0, -1, 1], 0.5, 1.0), ([0, 0], 0, 1)]
)
def test_bootstrap_p(draws, observed, p):
    assert bootstrap_p(np.array(draws, dtype=float), observed) == pytest.approx(p)


def test_rounding_noise_is_a_tie():
    draws = np.array([1e-17, -1e-17, 0.0] + [1.0] * 96)
    assert bootstrap_p(draws, 1.0) == pytest.approx(2 * 4 / 100)


def test_a_mean_as_a_metric_is_the_mean():
    metric = mean_metric("score", SCORES)
    found = interval_of_metric(metric, resamples=3000)
    expected = bootstrap_interval(SCORES, method="percentile", resamples=3000)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    jackknifed = interval_of_metric(metric, method="jackknife")
    assert jackknifed.stderr == pytest.approx(SCORES.std(ddof=1) / np.sqrt(80))


def test_jackknife_of_a_metric_leaves_items_out():
    target = RNG.integers(0, 3, 60)
    guess = np.where(RNG.random(60) < 0.6, target, RNG.integers(0, 3, 60))
    values = jackknife_metric(label_metric("f1", guess, target, 3))
    for item in (0, 17, 59):
        rest = np.delete(np.arange(60), item)
        assert values[item] == pytest.approx(label_metric("f1", guess[rest], target[rest], 3).value)


def test_many_items_are_left_out_in_groups():
    metric = mean_metric("score", RNG.normal(size=3001))
    values = jackknife_metric(metric)
    assert len(values) == 500
    assert jackknife_stderr(values) == pytest.approx(1 / np.sqrt(3001), rel=0.15)


@pytest.mark.parametrize("method", ["percentile", "bca", "jackknife"])
def test_intervals_of_metrics_agree(method):
    probabilities = RNG.dirichlet(np.ones(4), 300)
    target = RNG.integers(0, 4, 300)
    found = interval_of_metric(calibration_error(probabilities, target), method=method, resamples=2000)
    assert found.low < found.high
    assert found.stderr == pytest.approx(0.03, abs=0.02)


def test_unknown_interval():
    with pytest.raises(StatisticsError, match="percentile"):
        bootstrap_interval([1.0, 2.0], method="basic")


@pytest.mark.parametrize("form", ["f1", "accuracy", "auroc", "ece", "r2"])
def test_the_delta_method_has_the_bootstrap_s_error(form: str) -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, 800)
    noise = rng.normal(size=(800, 3)) + 1.5 * np.eye(3)[labels]
    probs = np.exp(noise) / np.exp(noise).sum(axis=1, keepdims=True)
    metric = {
        "f1": lambda: label_metric("f1", probs.argmax(1), labels, 3),
        "accuracy": lambda: label_metric("accuracy", probs.argmax(1), labels, 3),
        "auroc": lambda: auroc(probs, labels),
        "ece": lambda: calibration_error(probs**2 / (probs**2).sum(1, keepdims=True), labels),
        "r2": lambda: regression_metric("r2", noise[:, 0], noise[:, 0] + rng.normal(size=800)),
    }[form]()
    fast = interval_of_metric(metric, method="delta")
    slow = interval_of_metric(metric, resamples=2_000)
    assert fast.method == "delta method"
    near = 0.25 if form == "ece" else 0.12  # absolute gaps bend at zero
    assert fast.stderr == pytest.approx(slow.stderr, rel=near)
    clusters = np.arange(800) // 4
    assert interval_of_metric(metric, clusters, method="delta").stderr == pytest.approx(
        interval_of_metric(metric, clusters, resamples=2_000).stderr, rel=near
    )


def test_a_metric_that_tells_no_influences_is_left_out_item_by_item() -> None:
    metric = regression_metric("r2", np.arange(30.0), np.arange(30.0) + np.sin(np.arange(30)))
    bare = ItemMetric(metric.name, metric.n_items, metric.of_weights, metric.take)
    assert interval_of_metric(bare, method="delta") == interval_of_metric(bare, method="jackknife")
