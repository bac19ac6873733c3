"""Percentile and BCa intervals, bootstrap p-values and the jackknife, for means and for metrics that are no mean.

Efron and Tibshirani 1993, chapters 13 (percentile), 14.3 (BCa) and 11 (jackknife); DiCiccio and Efron 1996.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from fusion_eval.errors import Fault, StatisticsError, listed
from fusion_eval.stats.arrays import Floats, Ints, as_clusters, as_items, cluster_totals
from fusion_eval.stats.effects import is_constant, tolerance
from fusion_eval.stats.intervals import FEW_UNITS, Interval, check_level, student_t
from fusion_eval.stats.item_metric import ItemMetric
from fusion_eval.stats.resample import RESAMPLES, resampled_means, resampled_metrics

INTERVALS = ("percentile", "bca")
_GROUPS = 500


def percentile_interval(draws: Floats, level: float = 0.95) -> tuple[float, float]:
    """The central share `level` of the resampled values."""
    low, high = np.nanpercentile(draws, [50 * (1 - level), 50 * (1 + level)])
    return float(low), float(high)


def bca_interval(draws: Floats, observed: float, acceleration: float, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval corrected for bias and for a spread that changes with the value."""
    known = draws[~np.isnan(draws)]
    noise = tolerance(known)
    below = ((known < observed - noise).mean() + (known <= observed + noise).mean()) / 2
    if not 0 < below < 1:
        return percentile_interval(draws, level)
    z0, z = float(ndtri(below)), float(ndtri(0.5 + level / 2))
    shares = [ndtr(z0 + (z0 + side) / (1 - acceleration * (z0 + side))) for side in (-z, z)]
    low, high = np.percentile(known, [100 * float(share) for share in shares])
    return float(low), float(high)


def bootstrap_p(draws: Floats, observed: float) -> float:
    """The two-sided p-value 2 (k + 1) / (B + 1), k resampled differences on or beyond zero, give or take rounding."""
    known = draws[~np.isnan(draws)]
    noise = tolerance(known)
    if abs(observed) <= noise:
        return 1.0
    opposite = int((known * math.copysign(1.0, observed) <= noise).sum())
    return min(1.0, 2.0 * (opposite + 1) / (len(known) + 1))


def acceleration_of(jackknife: Floats) -> float:
    """A sixth of the skewness of the leave-one-out values, sign turned: the BCa acceleration."""
    gaps = jackknife.mean() - jackknife
    spread = float((gaps**2).sum())
    return float((gaps**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0


def jackknife_means(scores: Floats, codes: Ints | None) -> Floats:
    """The means without one item, or without one cluster, each."""
    sums, sizes = cluster_totals(scores, codes)
    return np.asarray((sums.sum() - sums) / (sizes.sum() - sizes))


def jackknife_metric(metric: ItemMetric, codes: Ints | None = None) -> Floats:
    """The metric without one item or cluster each; many items are left out in at most 500 random groups."""
    n = metric.n_items
    groups = codes if codes is not None else _groups(n)
    number = int(groups.max()) + 1
    step = max(1, (1 << 20) // n)
    blocks = (np.arange(start, min(start + step, number)) for start in range(0, number, step))
    return np.concatenate([metric.of_weights((groups != block[:, np.newaxis]).astype(np.float64)) for block in blocks])


def _groups(n: int) -> Ints:
    """Groups of equal size for leaving out; random ones, for neighbours in a data set are often alike."""
    groups = (np.arange(n, dtype=np.int64) * min(n, _GROUPS)) // n
    return groups if n <= _GROUPS else np.random.default_rng(0).permutation(groups)


def jackknife_stderr(values: Floats) -> float:
    """The standard error from leave-one-out values: sqrt((n-1)/n * sum of squared gaps)."""
    n = len(values)
    return math.sqrt((n - 1) / n * float(((values - values.mean()) ** 2).sum()))


def check_interval(method: str, choices: Sequence[str] = INTERVALS) -> str:
    """The name of a known kind of interval."""
    if method not in choices:
        raise StatisticsError(Fault("interval", repr(method), f"one of {listed(choices)}"))
    return method


def bootstrap_interval(
    scores: ArrayLike,
    clusters: Sequence[Any] | NDArray[Any] | None = None,
    level: float = 0.95,
    *,
    method: str = "bca",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The mean of per-item scores with a bootstrap interval over items, or over whole clusters."""
    values = as_items("scores", scores)
    codes = as_clusters(clusters, len(values))
    check_level(level)
    check_interval(method)
    mean = float(values.mean())
    draws = resampled_means(values[:, np.newaxis], codes, resamples, seed)[:, 0]
    if is_constant(draws) or method == "percentile":
        low, high = percentile_interval(draws, level)
    else:
        low, high = bca_interval(draws, mean, acceleration_of(jackknife_means(values, codes)), level)
    return _interval((mean, float(draws.std(ddof=1)), low, high), level, method, (len(values), codes))


def interval_of_metric(
    metric: ItemMetric,
    clusters: Sequence[Any] | NDArray[Any] | None = None,
    level: float = 0.95,
    *,
    method: str = "percentile",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """A metric that is no mean with its interval: `percentile`, `bca`, `jackknife` or `delta` over items or clusters.

    `delta` is the fastest: the spread of the items' influences on the value (the infinitesimal jackknife, Efron 1982);
    it becomes the jackknife where a metric tells no influences.
    """
    codes = as_clusters(clusters, metric.n_items)
    check_level(level)
    check_interval(method, (*INTERVALS, "jackknife", "delta"))
    size = (metric.n_items, codes)
    influence = influences_of(metric) if method == "delta" else None
    if influence is not None:
        sums = influence if codes is None else np.bincount(codes, weights=influence)
        stderr = math.sqrt(float(((sums - sums.mean()) ** 2).sum()) * len(sums) / (len(sums) - 1))
        low, high = student_t(metric.value, stderr, len(sums) - 1, level)
        return _named(_interval((metric.value, stderr, low, high), level, method, size, metric.notes), "delta method")
    method = "jackknife" if method == "delta" else method
    if method == "jackknife":
        values = jackknife_metric(metric, codes)
        stderr = jackknife_stderr(values)
        low, high = student_t(metric.value, stderr, len(values) - 1, level)
        return _interval((metric.value, stderr, low, high), level, method, size, metric.notes)
    draws = resampled_metrics([metric], codes, resamples, seed)[:, 0]
    low, high = metric_bounds(draws, metric, codes, level, method)
    return _interval((metric.value, float(np.nanstd(draws, ddof=1)), low, high), level, method, size, metric.notes)


def influences_of(metric: ItemMetric) -> Floats | None:
    """The value's derivative by every item's weight, where the metric can tell it."""
    if metric.slopes is not None:
        return metric.slopes
    return None if metric.influence is None else metric.influence()


def _named(interval: Interval, method: str) -> Interval:
    return replace(interval, method=method)


def metric_bounds(
    draws: Floats, metric: ItemMetric, codes: Ints | None, level: float, method: str
) -> tuple[float, float]:
    """The ends of the percentile or BCa interval of one metric's resampled values."""
    if method == "percentile":
        return percentile_interval(draws, level)
    return bca_interval(draws, metric.value, acceleration_of(jackknife_metric(metric, codes)), level)


def _interval(
    numbers: tuple[float, float, float, float],
    level: float,
    method: str,
    size: tuple[int, Ints | None],
    notes: tuple[str, ...] = (),
) -> Interval:
    n_items, codes = size
    clusters = None if codes is None else int(codes.max()) + 1
    units = n_items if clusters is None else clusters
    if units < FEW_UNITS:
        noun = ("item" if clusters is None else "cluster") + ("s" if units != 1 else "")
        notes = (*notes, f"only {units} {noun}: a bootstrap interval is too narrow below {FEW_UNITS}")
    value, stderr, low, high = numbers
    return Interval(value, stderr, low, high, level, f"{method} bootstrap", n_items, clusters, notes)
