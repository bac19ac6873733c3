from __future__ import annotations

import math

import numpy as np
import pytest

from fusion_eval.stats import crossed_t, standard_error, variance_of_runs
from fusion_eval.stats.crossed import variance_of_draws
from fusion_eval.stats.resample import resampled_means

RNG = np.random.default_rng(2)
RUNS = RNG.normal(size=(5, 1)) * 0.1 + RNG.normal(size=(1, 90)) + RNG.normal(size=(5, 90)) * 0.5


def test_the_parts_are_the_mean_squares_of_a_two_way_table():
    seeds, items = RUNS.shape
    mean = RUNS.mean()
    of_seeds = items * ((RUNS.mean(axis=1) - mean) ** 2).sum() / (seeds - 1)
    of_items = seeds * ((RUNS.mean(axis=0) - mean) ** 2).sum() / (items - 1)
    rest = RUNS - RUNS.mean(axis=1, keepdims=True) - RUNS.mean(axis=0, keepdims=True) + mean
    of_rest = (rest**2).sum() / ((seeds - 1) * (items - 1))
    found = variance_of_runs(RUNS)
    total = np.array([of_seeds, of_items, of_rest]) / (seeds * items)
    assert [found.seeds, found.items, found.rest] == pytest.approx(total, rel=1e-9)
    assert found.total == pytest.approx(total[0] + total[1] - total[2])


def test_clusters_of_one_item_change_nothing():
    plain, clustered = variance_of_runs(RUNS), variance_of_runs(RUNS, np.arange(90))
    assert clustered.total == pytest.approx(plain.total)
    assert clustered.df == pytest.approx(plain.df)


def test_the_items_part_is_the_clustered_error_of_the_averaged_runs():
    codes = np.repeat(np.arange(18), 5)
    found = variance_of_runs(RUNS, codes)
    assert found.items == pytest.approx(standard_error(RUNS.mean(axis=0), codes) ** 2)
    assert found.n_units == 18


def test_degrees_of_freedom_lie_between_the_factors():
    assert 4 <= variance_of_runs(RUNS).df <= 4 * 89
    only_seeds = RNG.normal(size=(5, 1)) + np.zeros((5, 90))
    assert variance_of_runs(only_seeds).df == pytest.approx(4.0)


def test_resamples_of_a_metric_give_the_same_parts():
    draws = resampled_means(RUNS.T, None, 20_000, 0)
    found, exact = variance_of_draws(RUNS.mean(axis=1), draws, 90), variance_of_runs(RUNS)
    assert found.seeds == pytest.approx(exact.seeds)
    assert found.items == pytest.approx(exact.items, rel=0.05)
    assert found.rest == pytest.approx(exact.rest, rel=0.1)


def test_the_test_and_its_interval_agree():
    for shift in np.linspace(-1, 1, 11):
        runs = RUNS - RUNS.mean() + shift
        found = crossed_t(runs.mean(), variance_of_runs(runs), 0.0, 0.95)
        assert (found.p < 0.05) == (found.low > 0 or found.high < 0)
        assert found.claim == "the recipe"


def test_no_variation_is_said():
    found = crossed_t(0.5, variance_of_runs(np.full((3, 4), 0.5)), 0.0, 0.95)
    assert math.isnan(found.p)
    assert found.notes
