"""Adjusted mutual information: scikit-learn's to the last digits, and its form by items."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fusion_eval.forms.contingency import contingency_form
from fusion_eval.task.metric.mutual import ExactAdjustedMutualInfo, expected_mutual_information

sklearn = pytest.importorskip("sklearn.metrics")


def groupings(items: int, groups: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, groups, items)
    return np.where(rng.random(items) < noise, rng.integers(0, groups + 2, items), truth), truth


@pytest.mark.parametrize(("items", "groups", "noise"), [(30, 3, 0.5), (400, 10, 0.3), (20_000, 5, 0.9), (12, 12, 0.0)])
def test_values_are_those_of_scikit_learn(items: int, groups: int, noise: float) -> None:
    found, truth = groupings(items, groups, noise)
    metric = ExactAdjustedMutualInfo()
    metric.update(torch.as_tensor(found), torch.as_tensor(truth))
    assert float(metric.compute()) == pytest.approx(sklearn.adjusted_mutual_info_score(truth, found), abs=1e-9)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2]])
def test_groupings_without_choice(labels: list[int]) -> None:
    metric = ExactAdjustedMutualInfo()
    metric.update(torch.tensor(labels), torch.tensor(labels))
    assert float(metric.compute()) == sklearn.adjusted_mutual_info_score(labels, labels) == 1.0


def test_independent_groupings_score_what_chance_gives() -> None:
    rows, columns = np.array([10.0, 20.0, 30.0]), np.array([25.0, 35.0])
    rng = np.random.default_rng(0)
    items, others = np.repeat([0, 1, 2], [10, 20, 30]), np.repeat([0, 1], [25, 35])
    drawn = [sklearn.mutual_info_score(items, rng.permutation(others)) for _ in range(400)]
    assert expected_mutual_information(rows, columns) == pytest.approx(np.mean(drawn), rel=0.15)


def test_the_form_follows_resampled_items() -> None:
    found, truth = groupings(300, 4, 0.5)
    form = contingency_form(ExactAdjustedMutualInfo(), "ami", found, truth)
    assert form is not None
    assert form.value == pytest.approx(sklearn.adjusted_mutual_info_score(truth, found), abs=1e-9)
    for seed in range(5):
        index = np.random.default_rng(seed).integers(0, 300, 300)
        weights = np.bincount(index, minlength=300).astype(np.float64)[None]
        again = sklearn.adjusted_mutual_info_score(truth[index], found[index])
        assert form.of_weights(weights)[0] == pytest.approx(again, abs=1e-3)
