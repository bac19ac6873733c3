from __future__ import annotations

import numpy as np
import pytest

from fusion_eval.stats import crossed_means, label_metric, resampled_means, resampled_metrics
from fusion_eval.stats import resample as module
from fusion_eval.stats.probability_metrics import binary_auroc

RNG = np.random.default_rng(3)
SCORES = RNG.normal(size=(400, 3)) * [1.0, 2.0, 0.5]


def test_item_draws_are_those_of_a_plain_loop():
    draws = resampled_means(SCORES[:50], None, 30, 7)
    index = np.random.default_rng(7).integers(0, 50, (30, 50))
    assert draws == pytest.approx(SCORES[:50][index].mean(axis=1), abs=1e-12)


def test_blocks_do_not_change_the_draws(monkeypatch):
    whole = resampled_means(SCORES, None, 200, 0)
    monkeypatch.setattr(module, "_BLOCK", 1000)
    assert (resampled_means(SCORES, None, 200, 0) == whole).all()


def test_clusters_are_drawn_whole():
    codes = np.repeat(np.arange(20), 20)
    draws = resampled_means(SCORES, codes, 25, 1)
    index = np.random.default_rng(1).integers(0, 20, (25, 20))
    expected = SCORES.reshape(20, 20, 3).mean(axis=1)[index].mean(axis=1)
    assert draws == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("values", ["distinct", "few"])
def test_large_data_keeps_the_distribution(monkeypatch, values):
    """Cells and Poisson weights give the standard error and correlation of drawn items."""
    scores = SCORES if values == "distinct" else (SCORES > 0).astype(float)
    monkeypatch.setattr(module, "_MANY", 0)
    draws = resampled_means(scores, None, 20_000, 0)
    assert draws.mean(axis=0) == pytest.approx(scores.mean(axis=0), abs=0.003)
    expected = np.cov(scores.T, ddof=0) / len(scores)
    assert np.cov(draws.T) == pytest.approx(expected, abs=0.05 * expected.max())


def test_poisson_weights_have_mean_and_variance_one():
    table = module._poisson_table()
    assert len(table) == 1 << 16
    assert table.mean() == 1.0
    assert table.var() == pytest.approx(1.0, abs=1e-3)
    block = np.concatenate(list(module.poisson_weights(1001, 300, np.random.default_rng(0))))
    assert block.shape == (300, 1001)
    assert block.mean() == pytest.approx(1.0, abs=0.01)
    assert abs(np.corrcoef(block[:, 0], block[:, 1])[0, 1]) < 0.2


def test_metrics_agree_whichever_way_they_are_drawn(monkeypatch):
    target = RNG.integers(0, 3, 600)
    guess = np.where(RNG.random(600) < 0.7, target, RNG.integers(0, 3, 600))
    metrics = [label_metric("f1", guess, target, 3), label_metric("accuracy", guess, target, 3)]
    drawn = resampled_metrics(metrics, None, 4000, 0)
    monkeypatch.setattr(module, "_MANY", 0)
    cells = resampled_metrics(metrics, None, 4000, 0)
    assert cells.std(axis=0) == pytest.approx(drawn.std(axis=0), rel=0.06)
    assert cells.mean(axis=0) == pytest.approx(drawn.mean(axis=0), abs=0.002)


def test_slopes_replace_draws_for_many_items(monkeypatch):
    target = RNG.integers(0, 2, 2000)
    metric = binary_auroc(np.round(target + RNG.normal(size=2000), 2), target)
    drawn = resampled_metrics([metric], None, 2000, 0)
    monkeypatch.setattr(module, "_MANY_SORTED", 0)
    sloped = resampled_metrics([metric], None, 2000, 0)
    assert sloped.std() == pytest.approx(drawn.std(), rel=0.06)


def test_slopes_serve_clusters_too(monkeypatch):
    target = RNG.integers(0, 2, 1500)
    level = np.repeat(RNG.normal(size=150), 10)
    metric, codes = binary_auroc(target + level, target), np.repeat(np.arange(150), 10)
    drawn = resampled_metrics([metric], codes, 2000, 0)
    monkeypatch.setattr(module, "_MANY_SORTED", 0)
    sloped = resampled_metrics([metric], codes, 2000, 0)
    assert sloped.std() == pytest.approx(drawn.std(), rel=0.08)


def test_wide_clusters_come_in_small_blocks():
    shapes = [block.shape for block in module.item_weights(5, 1000, np.random.default_rng(0), width=100_000)]
    assert max(rows for rows, _ in shapes) <= 3
    assert sum(rows for rows, _ in shapes) == 1000


def test_crossed_draws_vary_more_than_items_or_seeds_alone():
    runs = RNG.normal(size=(5, 1)) * 0.2 + RNG.normal(size=(1, 300)) + RNG.normal(size=(5, 300)) * 0.1
    both = crossed_means(runs, None, 8000, 0).std()
    items = resampled_means(runs.T, None, 8000, 0).mean(axis=1).std()
    expected = np.sqrt(runs.mean(axis=1).var(ddof=0) / 5 + items**2)
    assert both > items
    assert both == pytest.approx(expected, rel=0.05)


def test_the_same_seed_gives_the_same_digits():
    assert (resampled_means(SCORES, None, 100, 5) == resampled_means(SCORES, None, 100, 5)).all()
    assert (resampled_means(SCORES, None, 100, 5) != resampled_means(SCORES, None, 100, 6)).any()
