"""Confidence intervals of a mean score: Wilson for proportions, Student t else, both also for clustered items.

Sources: Wilson 1927; Miller 2024 (arXiv 2411.00640) for clustered standard errors; Bowyer et al. 2025 (arXiv
2503.01747) for small benchmarks; Korn and Graubard 1998 and Dean and Pagano 2015 for Wilson with an effective sample
size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from fusion_eval.errors import Fault, StatisticsError
from fusion_eval.stats.arrays import Floats, Ints, as_clusters, as_items, is_binary

FEW_UNITS = 20
FEW_FOR_NORMAL = 300


@final
@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its standard error and confidence interval.

    `method` says how the interval was made, `notes` what a reader must know about it.
    """

    value: float
    stderr: float
    low: float
    high: float
    level: float
    method: str
    n_items: int
    n_clusters: int | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def check_level(level: float) -> float:
    """The confidence level, when it lies between 0 and 1."""
    if not isinstance(level, Real) or not 0.0 < level < 1.0:
        raise StatisticsError(Fault("level", repr(level), "a number between 0 and 1, such as 0.95"))
    return float(level)


def normal_quantile(level: float) -> float:
    """The two-sided standard normal quantile, 1.96 at level 0.95."""
    return float(ndtri(0.5 + level / 2))


def t_quantile(level: float, df: float) -> float:
    """The two-sided Student t quantile with df degrees of freedom."""
    return float(stdtrit(df, 0.5 + level / 2)) if math.isfinite(df) else normal_quantile(level)


def wilson(successes: float, n: float, level: float = 0.95, *, quantile: float | None = None) -> tuple[float, float]:
    """The Wilson score interval of successes out of n; its ends are exactly 0 and 1 where none or all succeed."""
    z = normal_quantile(level) if quantile is None else quantile
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def student_t(mean: float, stderr: float, df: float, level: float = 0.95) -> tuple[float, float]:
    """mean -+ t(df) * stderr."""
    half = t_quantile(level, df) * stderr
    return mean - half, mean + half


def standard_error(scores: Floats, codes: Ints | None = None, *, corrected: bool = True) -> float:
    """The standard error of the mean; with cluster codes the sandwich over clusters (Miller 2024, eq. 4).

    Args:
        scores: one score per item.
        codes: cluster of every item, 0..C-1, or None.
        corrected: multiply the clustered variance by C/(C-1) as Stata, statsmodels and inspect_ai do.

    Returns:
        NaN when there are fewer than two units.
    """
    n = len(scores)
    if codes is None:
        return float(scores.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    sums = np.bincount(codes, weights=scores - scores.mean())
    count = len(sums)
    if count < 2:
        return math.nan
    variance = float((sums**2).sum()) / n**2
    return math.sqrt(variance * count / (count - 1) if corrected else variance)


def interval_of(
    scores: ArrayLike,
    clusters: Sequence[Any] | NDArray[Any] | None = None,
    level: float = 0.95,
    *,
    where: str = "scores",
) -> Interval:
    """The mean of per-item scores with the right interval.

    0/1 scores get Wilson's (with an effective number of items where they are clustered), other scores Student t with
    n-1, or clusters-1, degrees of freedom.

    Raises:
        StatisticsError: empty or non-finite scores, or cluster labels that do not fit.
    """
    values = as_items(where, scores)
    codes = as_clusters(clusters, len(values))
    check_level(level)
    if is_binary(values):
        return _proportion(values, codes, level)
    return _mean(values, codes, level)


def _mean(values: Floats, codes: Ints | None, level: float) -> Interval:
    mean, stderr = float(values.mean()), standard_error(values, codes)
    units = _units(values, codes)
    if np.ptp(values) == 0.0:
        stderr = math.nan if units < 2 else 0.0
    low, high = student_t(mean, stderr, units - 1, level) if units > 1 else (math.nan, math.nan)
    method = "t" if codes is None else "clustered t"
    return Interval(mean, stderr, low, high, level, method, len(values), _count(codes), _notes(values, codes))


def _proportion(values: Floats, codes: Ints | None, level: float) -> Interval:
    n, mean = len(values), float(values.mean())
    stderr = standard_error(values, codes)
    if codes is None:
        low, high = wilson(float(values.sum()), n, level)
        return Interval(mean, stderr, low, high, level, "wilson", n, None, _small(n, "items"))
    clusters = int(codes.max()) + 1
    effective = _effective_n(mean, stderr, n, clusters)
    low, high = wilson(mean * effective, effective, level, quantile=t_quantile(level, clusters - 1))
    if mean in (0.0, 1.0):
        low, high = (0.0, high) if mean == 0.0 else (low, 1.0)
    return Interval(mean, stderr, low, high, level, "clustered wilson", n, clusters, _small(clusters, "clusters"))


def _effective_n(mean: float, stderr: float, n: int, clusters: int) -> float:
    # Without any variation the design effect is unknown: count clusters, the most careful choice.
    if stderr == 0.0 or mean in (0.0, 1.0):
        return float(clusters)
    return min(float(n), mean * (1 - mean) / stderr**2)


def _units(values: Floats, codes: Ints | None) -> int:
    return len(values) if codes is None else int(codes.max()) + 1


def _count(codes: Ints | None) -> int | None:
    return None if codes is None else int(codes.max()) + 1


def _small(units: int, noun: str) -> tuple[str, ...]:
    if units >= FEW_UNITS:
        return ()
    return (f"only {units} {noun if units != 1 else noun[:-1]}: the interval is a rough guide below {FEW_UNITS}",)


def _notes(values: Floats, codes: Ints | None) -> tuple[str, ...]:
    units, noun = _units(values, codes), "items" if codes is None else "clusters"
    if units < 2:
        return ("one item: no interval can be given",)
    if np.ptp(values) == 0.0:
        return (f"all {len(values)} scores are {values[0]:g}: an interval of zero width bounds nothing",)
    return _small(units, noun)
