"""Seeded simulations: with no true difference, the default tests call one in twenty comparisons significant, not more.

Every rate rests on at least 2000 comparisons, so its own standard error is about half a point.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from fusion_eval.stats import Scores, compare_metrics, compare_scores, interval_of, label_metric, wilson

pytestmark = pytest.mark.slow

NOMINAL = (0.03, 0.07)
FAST = {"resamples": 100}


def rate(draw: Callable[[np.random.Generator], bool], repeats: int = 2000, seed: int = 0) -> float:
    """The share of repeats in which `draw` finds something."""
    rng = np.random.default_rng(seed)
    return sum(draw(rng) for _ in range(repeats)) / repeats


def answers(rng: np.random.Generator, shape: tuple[int, ...], skill: float = 0.0, spread: float = 0.5) -> np.ndarray:
    """0/1 scores of two equally good methods on items of shared difficulty, shape (2, *shape)."""
    difficulty = rng.normal(size=shape[-1])
    noise = rng.normal(scale=spread, size=(2, *shape))
    noise[0] += skill
    return (noise > difficulty).astype(float)


def significant(scores: np.ndarray, **settings) -> bool:
    result = compare_scores(dict(zip("abcdefgh", scores, strict=False)), **{**FAST, **settings})
    return any(found.significant for found in result.comparisons)


@pytest.mark.parametrize("n", [50, 300])
@pytest.mark.parametrize("spread", [0.2, 0.8])
def test_one_run_of_right_and_wrong(n, spread):
    found = rate(lambda rng: significant(answers(rng, (n,), spread=spread)))
    assert NOMINAL[0] <= found <= NOMINAL[1]


def test_one_run_of_skewed_scores():
    found = rate(lambda rng: significant(rng.exponential(size=(1, 100)) + rng.exponential(size=(2, 100))))
    assert NOMINAL[0] <= found <= NOMINAL[1]


def clustered(rng: np.random.Generator, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of two methods whose difference shares an effect within each cluster, and the cluster of every item."""
    codes = np.repeat(np.arange(len(sizes)), sizes)
    effects = rng.normal(scale=0.5, size=(2, len(sizes)))[:, codes]
    return ((effects + rng.normal(size=(2, len(codes)))) > 0).astype(float), codes


@pytest.mark.parametrize("sizes", ["equal", "unequal"])
def test_clusters(sizes):
    counts = np.full(50, 10) if sizes == "equal" else np.tile([2, 5, 10, 15, 18], 10)

    def draw(rng: np.random.Generator) -> bool:
        scores, codes = clustered(rng, counts)
        return significant(scores, clusters=codes)

    assert NOMINAL[0] <= rate(draw) <= NOMINAL[1]


def test_ignoring_clusters_is_wrong_and_the_simulation_sees_it():
    assert rate(lambda rng: significant(clustered(rng, np.full(50, 10))[0]), repeats=500) > 0.12


def recipes(rng: np.random.Generator, seeds: int, items: int, between: float) -> np.ndarray:
    """Scores (2, seeds, items) of two equally good recipes whose seeds differ by `between`."""
    common = rng.normal(size=items)
    of_items = rng.normal(scale=0.3, size=(2, 1, items))
    of_seeds = rng.normal(scale=between, size=(2, seeds, 1))
    return common + of_items + of_seeds + rng.normal(scale=0.5, size=(2, seeds, items))


@pytest.mark.parametrize(("seeds", "between"), [(5, 0.02), (5, 0.1), (3, 0.05), (10, 0.05)])
def test_recipes_over_seeds_and_items(seeds, between):
    found = rate(lambda rng: significant(recipes(rng, seeds, 200, between)))
    assert NOMINAL[0] <= found <= NOMINAL[1]


@pytest.mark.parametrize("between", [0.02, 0.1, 0.5])
def test_two_seeds_claim_little(between):
    """Two seeds cannot tell their own spread: the test is careful where items matter, at its level where seeds do."""
    assert rate(lambda rng: significant(recipes(rng, 2, 100, between)), repeats=1500) <= NOMINAL[1]


def test_items_alone_say_nothing_about_recipes():
    def draw(rng: np.random.Generator) -> bool:
        return significant(recipes(rng, 5, 200, 0.1), test="ttest_rel", unit="items")

    assert rate(draw, repeats=500) > 0.2


@pytest.mark.parametrize("correction", ["holm", "bonferroni"])
def test_families_hold_their_level(correction):
    """Five equal methods, ten pairs: at least one false finding in about one of twenty comparisons, or fewer."""

    def draw(rng: np.random.Generator) -> bool:
        return significant(rng.normal(size=(5, 120)) + rng.normal(size=120), correction=correction)

    assert 0.01 <= rate(draw, repeats=1000) <= 0.07


def test_uncorrected_families_do_not():
    def draw(rng: np.random.Generator) -> bool:
        return significant(rng.normal(size=(8, 120)) + rng.normal(size=120), correction="none")

    assert rate(draw, repeats=300) > 0.3


@pytest.mark.parametrize("test", ["permutation", "bootstrap"])
def test_other_tests_over_items(test):
    def draw(rng: np.random.Generator) -> bool:
        return significant(answers(rng, (120,)), test=test, resamples=1000)

    assert NOMINAL[0] <= rate(draw) <= NOMINAL[1]


def test_a_metric_that_is_no_mean():
    def draw(rng: np.random.Generator) -> bool:
        target = rng.integers(0, 4, 250)
        right = rng.random((2, 250)) < 0.7
        guesses = np.where(right, target, rng.integers(0, 4, (2, 250)))
        metrics = {name: label_metric("f1", guess, target, 4) for name, guess in zip("ab", guesses, strict=True)}
        result = compare_metrics([Scores.from_metrics("f1", metrics)], resamples=1000)
        return result.comparisons[0].significant

    assert NOMINAL[0] <= rate(draw) <= NOMINAL[1]


@pytest.mark.parametrize("n", [10, 30, 200])
def test_wilson_covers(n):
    """Exact coverage for chances between 2% and 98%: 95% on average, and nowhere far below."""
    ends = np.array([wilson(k, n) for k in range(n + 1)])
    chances = np.linspace(0.02, 0.98, 193)
    inside = (ends[:, :1] <= chances) & (chances <= ends[:, 1:])
    coverage = (binom.pmf(np.arange(n + 1)[:, np.newaxis], n, chances) * inside).sum(axis=0)
    assert 0.945 <= coverage.mean() <= 0.965
    assert coverage.min() > 0.83


@pytest.mark.parametrize(("n", "least"), [(50, 0.839), (100, 0.861), (1000, 0.910)])
def test_wilson_covers_less_at_the_ends(n, least):
    """The figures of docs/statistics.md."""
    ends = np.array([wilson(k, n) for k in range(n + 1)])
    chances = np.linspace(0.0005, 0.9995, 1999)
    inside = (ends[:, :1] <= chances) & (chances <= ends[:, 1:])
    coverage = (binom.pmf(np.arange(n + 1)[:, np.newaxis], n, chances) * inside).sum(axis=0)
    assert coverage.min() == pytest.approx(least, abs=0.001)
    assert coverage.mean() == pytest.approx(0.951, abs=0.002)
    worst = chances[coverage.argmin()]
    assert min(worst, 1 - worst) < 1 / n
    assert coverage[(chances >= 0.1) & (chances <= 0.9)].min() >= 0.93


@pytest.mark.parametrize("clusters", [20, 60])
def test_clustered_intervals_cover(clusters):
    def missed(rng: np.random.Generator) -> bool:
        chances = np.repeat(rng.beta(4, 2, clusters), 8)
        found = interval_of((rng.random(8 * clusters) < chances).astype(float), np.repeat(np.arange(clusters), 8))
        return not found.low <= 2 / 3 <= found.high

    assert NOMINAL[0] <= rate(missed) <= NOMINAL[1]


def test_equivalence_is_claimed_wrongly_one_time_in_twenty():
    """The true difference lies exactly on the border of the rope."""

    def draw(rng: np.random.Generator) -> bool:
        scores = rng.normal(size=(1, 200)) + rng.normal(scale=0.5, size=(2, 200)) + np.array([[0.15], [0.0]])
        result = compare_scores(dict(zip("ab", scores, strict=True)), rope=0.15, **FAST)
        return result.comparisons[0].verdict == "equivalent"

    assert NOMINAL[0] <= rate(draw) <= NOMINAL[1]


def test_the_detectable_difference_is_detected_four_times_in_five():
    shift = 2.82 * np.sqrt(2 * 0.25 / 200)
    stated: list[float] = []

    def draw(rng: np.random.Generator) -> bool:
        scores = rng.normal(size=(1, 200)) + rng.normal(scale=0.5, size=(2, 200)) + np.array([[shift], [0.0]])
        result = compare_scores(dict(zip("ab", scores, strict=True)), **FAST)
        stated.append(result.comparisons[0].mde)
        return result.comparisons[0].significant

    assert 0.76 <= rate(draw) <= 0.84
    assert np.mean(stated) == pytest.approx(shift, rel=0.02)
