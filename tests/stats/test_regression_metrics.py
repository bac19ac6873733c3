from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from fusion_eval.errors import StatisticsError
from fusion_eval.stats import perplexity, regression_metric

RNG = np.random.default_rng(9)
TARGET = RNG.normal(50, 3, 80)
GUESS = TARGET + RNG.normal(0, 1.5, 80)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("mae", reference.mean_absolute_error(TARGET, GUESS)),
        ("mse", reference.mean_squared_error(TARGET, GUESS)),
        ("rmse", math.sqrt(reference.mean_squared_error(TARGET, GUESS))),
        ("r2", reference.r2_score(TARGET, GUESS)),
        ("pearson", stats.pearsonr(GUESS, TARGET).statistic),
    ],
)
def test_values_and_weights(form, expected):
    metric = regression_metric(form, GUESS, TARGET)
    assert metric.value == pytest.approx(expected, rel=1e-10)
    assert metric.higher_is_better == (form in ("r2", "pearson"))
    weights = RNG.integers(0, 3, 80)
    repeated = regression_metric(form, np.repeat(GUESS, weights), np.repeat(TARGET, weights))
    assert metric.of_weights(weights[np.newaxis].astype(float))[0] == pytest.approx(repeated.value, rel=1e-9)


def test_perplexity_pools_tokens():
    metric = perplexity([-10.0, -2.0], [5, 1])
    assert metric.value == pytest.approx(math.exp(2.0))
    assert metric.of_weights(np.array([[1.0, 0.0]]))[0] == pytest.approx(math.exp(2.0))
    assert not metric.higher_is_better


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: regression_metric("rsme", GUESS, TARGET), "Did you mean 'rmse'"),
        (lambda: regression_metric("mae", GUESS[:3], TARGET), "3 predictions"),
        (lambda: regression_metric("r2", GUESS, np.ones(80)), "do not vary"),
        (lambda: regression_metric("mae", GUESS * np.nan, TARGET), "NaN"),
        (lambda: perplexity([-1.0], [0]), "one positive number"),
        (lambda: perplexity([-1.0, -2.0], [1]), "2 log-likelihoods"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(StatisticsError) as error:
        call()
    assert words in str(error.value)
