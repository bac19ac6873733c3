"""How large a difference a comparison could have seen, and how many items or seeds a difference needs.

Miller 2024 (arXiv 2411.00640), section 5: n = (z_{alpha/2} + z_beta)^2 (omega^2 + s_A^2/K_A + s_B^2/K_B) / delta^2.
The exact forms use the noncentral t distribution.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import nctdtr, ndtr, ndtri, stdtrit

from fusion_eval.errors import Fault, StatisticsError

_NORMAL_DF = 300.0


def power_of(effect: float, stderr: float, df: float = math.inf, alpha: float = 0.05) -> float:
    """The chance that a two-sided t test finds a true difference `effect` estimated with `stderr`."""
    shift = abs(effect) / stderr
    if not math.isfinite(df):
        z = float(ndtri(1 - alpha / 2))
        return float(ndtr(shift - z) + ndtr(-shift - z))
    critical = float(stdtrit(df, 1 - alpha / 2))
    # scipy gives NaN for tails too small for a double: they are zero.
    below, beyond = np.nan_to_num([nctdtr(df, shift, critical), nctdtr(df, shift, -critical)])
    return float(1 - below + beyond)


def minimal_detectable_effect(stderr: float, df: float = math.inf, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest true difference found with the given power; NaN when the standard error is unknown or zero.

    Exact by the noncentral t up to 300 degrees of freedom, normal quantiles above.
    """
    if not (math.isfinite(stderr) and stderr > 0 and df >= 1):
        return math.nan
    if df > _NORMAL_DF:
        return float(ndtri(1 - alpha / 2) + ndtri(power)) * stderr
    return float(brentq(lambda shift: power_of(shift, 1.0, df, alpha) - power, 1e-6, _upper(df, alpha, power))) * stderr


def _upper(df: float, alpha: float, power: float) -> float:
    upper = float(stdtrit(df, 1 - alpha / 2)) + 1.0
    while power_of(upper, 1.0, df, alpha) < power:
        upper *= 2
    return upper


def items_needed(effect: float, sd: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """The number of paired items that shows a difference `effect` when the item differences have deviation `sd`.

    The same formula serves seeds: `sd` is then the deviation of the seed differences.
    """
    if not (effect != 0 and sd > 0):
        raise StatisticsError(Fault("items_needed", f"effect={effect}, sd={sd}", "effect not 0 and sd > 0"))

    def missing(n: float) -> float:
        return power_of(effect, sd / math.sqrt(n), n - 1, alpha) - power

    upper = 4.0
    while missing(upper) < 0:
        upper *= 2
    if missing(2.0) > 0:
        return 2.0
    return float(brentq(missing, 2.0, upper))


def items_needed_sampled(
    effect: float,
    between: float,
    within: tuple[float, float],
    samples: tuple[int, int],
    *,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float:
    """Miller's n when every item is answered K times by each model.

    Args:
        effect: the difference to find.
        between: variance over items of the difference of the two models' expected scores (omega^2).
        within: variance of one answer around its item's expectation, for both models (s_A^2, s_B^2).
        samples: answers per item of both models (K_A, K_B).
        alpha: two-sided level.
        power: chance to find the difference.
    """
    variance = between + within[0] / samples[0] + within[1] / samples[1]
    return float((ndtri(1 - alpha / 2) + ndtri(power)) ** 2 * variance / effect**2)


def smallest_p(test: str, n: int, n_b: int | None = None) -> float:
    """The smallest p-value a test can give with n units (and n_b in the second group); 0 where there is no floor.

    `n` counts what the test counts: seeds or items, discordant items for McNemar, resamples for a bootstrap.
    """
    if n < 1:
        return 1.0
    if test in ("wilcoxon", "permutation", "mcnemar"):
        return min(1.0, 2.0 * 0.5**n)
    if test == "mcnemar_midp":
        return min(1.0, 0.5**n)
    if test == "mannwhitney":
        return min(1.0, 2.0 / math.comb(n + (n_b or n), n))
    if test == "bootstrap":
        return 2.0 / (n + 1)
    return 0.0
