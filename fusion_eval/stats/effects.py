"""How large a difference is: standardised effects, correlation of items, discordant counts, practical equivalence."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import stdtr

from fusion_eval.stats.arrays import Floats, is_binary


def cohen_d_paired(a: Floats, b: Floats) -> float:
    """Cohen's d_z: the mean paired difference in deviations of the differences; infinite where they do not vary."""
    return _ratio(a - b)


def _ratio(difference: Floats) -> float:
    mean = float(difference.mean())
    if len(difference) < 2:
        return math.nan
    spread = 0.0 if is_constant(difference) else float(difference.std(ddof=1))
    if spread == 0.0:
        return 0.0 if abs(mean) <= tolerance(difference) else math.copysign(math.inf, mean)
    return mean / spread


def cohen_d_pooled(a: Floats, b: Floats) -> float:
    """Cohen's d of two independent groups with the pooled deviation."""
    if len(a) < 2 or len(b) < 2:
        return math.nan
    df = len(a) + len(b) - 2
    spread = math.sqrt(((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / df)
    mean = float(a.mean() - b.mean())
    if spread <= tolerance(np.concatenate([a, b])):
        return 0.0 if abs(mean) <= tolerance(np.concatenate([a, b])) else math.copysign(math.inf, mean)
    return mean / spread


def tolerance(values: Floats) -> float:
    """The rounding noise to expect in a mean of these values."""
    return 1e-12 * max(1e-300, float(np.abs(values).max()))


def is_constant(values: Floats, scale: Floats | None = None) -> bool:
    """Whether the values differ by no more than the rounding noise of numbers as large as `scale`, or themselves."""
    return bool(np.ptp(values) <= max(tolerance(values if scale is None else scale), 1e-15))


def item_correlation(a: Floats, b: Floats) -> float:
    """Pearson's r of two methods' item scores; NaN when one of them does not vary."""
    if len(a) < 2 or is_constant(a) or is_constant(b):
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def discordant(a: Floats, b: Floats) -> tuple[int, int] | None:
    """How many items only a, and only b, got right; None unless all scores are 0 or 1."""
    if not (is_binary(a) and is_binary(b)):
        return None
    return int(((a == 1) & (b == 0)).sum()), int(((a == 0) & (b == 1)).sum())


def tost_p(difference: float, stderr: float, df: float, rope: float) -> float:
    """The p-value of two one-sided t tests that the true difference lies within -rope..rope (Schuirmann 1987)."""
    if not math.isfinite(stderr) or df < 1:
        return math.nan
    if stderr == 0.0:
        return 0.0 if abs(difference) < rope else 1.0
    degrees = df if math.isfinite(df) else 1e12
    return float(stdtr(degrees, -(rope - abs(difference)) / stderr))
