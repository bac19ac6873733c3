"""Regression and language-model metrics as functions of item weights: all follow from a few sums over items."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from fusion_eval.errors import Fault, StatisticsError, did_you_mean, listed
from fusion_eval.stats.arrays import Floats, as_items
from fusion_eval.stats.item_metric import ItemMetric, additive_metric


def _divided(top: Floats, bottom: Floats) -> Floats:
    return np.asarray(np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 0))


def _r2(n: Floats, p: Floats, t: Floats, pp: Floats, tt: Floats, pt: Floats) -> Floats:
    return 1.0 - _divided(pp - 2 * pt + tt, tt - t * t / n)


def _pearson(n: Floats, p: Floats, t: Floats, pp: Floats, tt: Floats, pt: Floats) -> Floats:
    return _divided(n * pt - p * t, np.sqrt(np.maximum((n * pp - p * p) * (n * tt - t * t), 0.0)))


_ERRORS: Mapping[str, Callable[[Floats], Floats]] = {"mae": np.abs, "mse": np.square, "rmse": np.square}
_MOMENTS: Mapping[str, Callable[..., Floats]] = {"r2": _r2, "pearson": _pearson}


def regression_metric(form: str, preds: ArrayLike, target: ArrayLike) -> ItemMetric:
    """`mae`, `mse`, `rmse`, `r2` or `pearson` of one prediction per item.

    Raises:
        StatisticsError: unknown metric, unequal lengths, or values that do not vary for r2 and pearson.
    """
    choices = [*_ERRORS, *_MOMENTS]
    if form not in choices:
        raise StatisticsError(Fault("metric", repr(form), f"one of {listed(choices)}", did_you_mean(form, choices)))
    p, t = as_items(f"{form}, preds", preds), as_items(f"{form}, target", target)
    if len(p) != len(t):
        raise StatisticsError(Fault(form, f"{len(p)} predictions", f"{len(t)}, as many as targets"))
    if form in _ERRORS:
        table = np.column_stack([_ERRORS[form](p - t), np.ones(len(p))])
        root = np.sqrt if form == "rmse" else np.asarray
        return additive_metric(form, table, lambda sums: root(sums[:, 0] / sums[:, 1]), higher_is_better=False)
    if np.ptp(t) == 0 or (form == "pearson" and np.ptp(p) == 0):
        raise StatisticsError(Fault(form, "values that do not vary", "at least two different values"))
    # Centred sums: the metrics do not change with the origin, the rounding does.
    p, t = p - t.mean(), t - t.mean()
    table = np.column_stack([np.ones(len(p)), p, t, p * p, t * t, p * t])
    return additive_metric(form, table, lambda sums: _MOMENTS[form](*sums.T))


def perplexity(log_likelihoods: ArrayLike, tokens: ArrayLike) -> ItemMetric:
    """exp(-sum of log-likelihoods / sum of tokens); one log-likelihood and one number of tokens (or bytes) per item."""
    total, count = as_items("perplexity, log_likelihoods", log_likelihoods), as_items("perplexity, tokens", tokens)
    if len(total) != len(count) or (count < 0).any() or count.sum() == 0:
        found = f"{len(total)} log-likelihoods, {len(count)} counts from {count.min():g}"
        raise StatisticsError(Fault("perplexity", found, "one positive number of tokens per item"))
    table = np.column_stack([total, count])
    return additive_metric(
        "perplexity", table, lambda sums: np.exp(-_divided(sums[:, 0], sums[:, 1])), higher_is_better=False
    )
