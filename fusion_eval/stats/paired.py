"""Tests of the difference of two methods over independent units: items, clusters of items, or seeds.

Student's paired t, Wilcoxon's signed ranks, sign-flip permutation and McNemar's exact and mid-p tests are paired;
Welch, Student's and Mann-Whitney are not. All are two-sided. Whatever the test, the interval is of the mean difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from scipy import stats

from fusion_eval.errors import Fault, StatisticsError, did_you_mean, listed
from fusion_eval.stats.arrays import Floats, Ints, cluster_totals
from fusion_eval.stats.effects import cohen_d_paired, cohen_d_pooled, discordant, is_constant, tolerance
from fusion_eval.stats.intervals import normal_quantile, standard_error, student_t
from fusion_eval.stats.outcome import CLUSTERS, Outcome
from fusion_eval.stats.power import smallest_p
from fusion_eval.stats.resample import RESAMPLES

PAIRED = ("ttest_rel", "wilcoxon", "permutation", "mcnemar", "mcnemar_midp", "bootstrap")
UNPAIRED = ("welch", "ttest_ind", "mannwhitney")
CLUSTERED = ("ttest_rel", "wilcoxon", "permutation", "bootstrap")
AUTO = "auto"
_ENUMERATED = 14
_FEW_VALUES = 64


def check_test(name: str) -> str:
    """The name of a known test."""
    choices = [AUTO, *PAIRED, *UNPAIRED]
    if name not in choices:
        raise StatisticsError(Fault("test", repr(name), f"one of {', '.join(choices)}", did_you_mean(name, choices)))
    return name


def paired_t(a: Floats, b: Floats, unit: str, level: float) -> Outcome:
    """Student's t over paired units; a difference that never varies is tested by its signs instead."""
    difference = a - b
    if is_constant(difference, np.concatenate([a, b])):
        return _constant("ttest_rel", a, b, unit, level)
    found = stats.ttest_rel(a, b)
    low, high = found.confidence_interval(level)
    stderr, df = standard_error(difference), float(len(difference) - 1)
    effect = cohen_d_paired(a, b)
    return Outcome("ttest_rel", unit, float(found.pvalue), float(low), float(high), stderr, df, 0.0, len(a), effect)


def _constant(test: str, a: Floats, b: Floats, unit: str, level: float) -> Outcome:
    """The sign test of a difference that is the same everywhere: 2^(1-n), or 1 for no difference at all."""
    difference, n = a - b, len(a)
    same = abs(float(difference.mean())) <= max(tolerance(a), tolerance(b))
    floor = smallest_p("permutation", n)
    low, high, stderr = math.nan, math.nan, math.nan
    if discordant(a, b) is not None:
        low, high, stderr = paired_proportions(a, b, level)
    text = f"the difference is {difference.mean():.6g} on all {n} {unit}"
    effect = cohen_d_paired(a, b)
    return Outcome(test, unit, 1.0 if same else floor, low, high, stderr, n - 1.0, floor, n, effect, (text,))


def clustered_t(difference: Floats, codes: Ints, level: float) -> Outcome:
    """Student's t with a clustered standard error and one degree of freedom less than clusters (Miller 2024)."""
    sums, sizes = cluster_totals(difference, codes)
    count, effect = len(sums), cohen_d_paired(difference, np.zeros_like(difference))
    if is_constant(sums / sizes):
        same = _constant("ttest_rel", sums / sizes, np.zeros(count), CLUSTERS, level)
        return replace(same, effect=effect)
    mean, stderr = float(difference.mean()), standard_error(difference, codes)
    low, high = student_t(mean, stderr, count - 1, level)
    p = float(2 * stats.t.sf(abs(mean) / stderr, count - 1))
    return Outcome("ttest_rel", CLUSTERS, p, low, high, stderr, count - 1.0, 0.0, count, effect)


def wilcoxon(a: Floats, b: Floats, unit: str, level: float) -> Outcome:
    """Wilcoxon's signed-rank test, with the t interval of the mean difference."""
    base = paired_t(a, b, unit, level)
    if np.allclose(a, b):
        return replace(base, test="wilcoxon", p=1.0, floor=1.0)
    p = float(stats.wilcoxon(a, b).pvalue)
    moved = int((np.abs(a - b) > 0).sum())
    return replace(base, test="wilcoxon", p=p, floor=smallest_p("wilcoxon", moved))


def permutation(a: Floats, b: Floats, unit: str, level: float, resamples: int = RESAMPLES, seed: int = 0) -> Outcome:
    """The sign-flip test of paired differences, with the t interval of the mean difference."""
    p, floor = sign_flip_p(a - b, resamples, seed)
    return replace(paired_t(a, b, unit, level), test="permutation", p=p, floor=floor)


def sign_flip_p(difference: Floats, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """The p-value of the sum when every difference may turn its sign, and the smallest p possible.

    Exact by enumeration for few non-zero differences and by the binomial law where all have one size; else Monte Carlo.
    """
    moved = difference[np.abs(difference) > tolerance(difference)]
    if len(moved) == 0:
        return 1.0, 1.0
    sizes, counts = np.unique(np.round(np.abs(moved) / np.abs(moved).max(), 12), return_counts=True)
    if len(sizes) == 1:
        ahead = int((moved > 0).sum())
        return float(stats.binomtest(ahead, len(moved)).pvalue), smallest_p("permutation", len(moved))
    if len(moved) <= _ENUMERATED:
        signs = 1.0 - 2.0 * ((np.arange(1 << len(moved))[:, np.newaxis] >> np.arange(len(moved))) & 1)
        draws = signs @ moved
        beyond = np.abs(draws) >= abs(moved.sum()) - tolerance(moved) * len(moved)
        return float(beyond.mean()), smallest_p("permutation", len(moved))
    draws = _flipped_sums(moved, sizes, counts, resamples, seed)
    beyond = np.abs(draws) >= abs(moved.sum()) - tolerance(moved) * len(moved)
    return float((beyond.sum() + 1) / (resamples + 1)), 1 / (resamples + 1)


def _flipped_sums(moved: Floats, sizes: Floats, counts: Ints, resamples: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    if len(sizes) <= _FEW_VALUES:
        ahead = rng.binomial(counts, 0.5, size=(resamples, len(counts)))
        return np.asarray(((2.0 * ahead - counts) * sizes).sum(axis=1) * np.abs(moved).max())
    step = max(1, (1 << 20) // len(moved))
    blocks = []
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        bits = np.unpackbits(rng.integers(0, 256, (rows, -(-len(moved) // 8)), dtype=np.uint8), axis=1)[:, : len(moved)]
        blocks.append(2.0 * (bits @ moved) - moved.sum())
    return np.concatenate(blocks)


def mcnemar_p(only_a: int, only_b: int, *, midp: bool = False) -> float:
    """McNemar's exact p of the discordant counts, or its mid-p form (Fagerland, Lydersen and Laake 2013)."""
    n, k = only_a + only_b, min(only_a, only_b)
    if n == 0:
        return 1.0
    exact = float(stats.binomtest(k, n).pvalue)
    if not midp:
        return exact
    at = float(stats.binom.pmf(k, n, 0.5))
    return min(1.0, exact - at) if only_a != only_b else 1.0 - at / 2


def mcnemar(a: Floats, b: Floats, unit: str, level: float, *, midp: bool = False) -> Outcome:
    """McNemar's test of paired 0/1 scores with the adjusted Wald interval of the difference.

    Raises:
        StatisticsError: the scores are not all 0 or 1.
    """
    counts = discordant(a, b)
    if counts is None:
        do = "Use test='permutation' or test='ttest_rel' for other scores, or compare one run of each method."
        raise StatisticsError(Fault("test='mcnemar'", "scores other than 0 and 1", "0/1 scores of one run", do))
    low, high, stderr = paired_proportions(a, b, level)
    name = "mcnemar_midp" if midp else "mcnemar"
    p, effect = mcnemar_p(*counts, midp=midp), cohen_d_paired(a, b)
    return Outcome(name, unit, p, low, high, stderr, math.inf, smallest_p(name, sum(counts)), len(a), effect)


def paired_proportions(a: Floats, b: Floats, level: float) -> tuple[float, float, float]:
    """The adjusted Wald interval of a difference of paired proportions and its standard error (Bonett and Price 2012).

    One success is added to each discordant count, so that it has width even where the methods agree everywhere.
    """
    only_a, only_b = discordant(a, b) or (0, 0)
    n = len(a) + 2
    first, second = (only_a + 1) / n, (only_b + 1) / n
    stderr = math.sqrt((first + second - (first - second) ** 2) / n)
    half = normal_quantile(level) * stderr
    return max(-1.0, first - second - half), min(1.0, first - second + half), stderr


def welch(a: Floats, b: Floats, unit: str, level: float) -> Outcome:
    """Welch's t: independent groups with their own variances."""
    return _independent("welch", a, b, unit, level)


def ttest_ind(a: Floats, b: Floats, unit: str, level: float) -> Outcome:
    """Student's t of independent groups with one variance."""
    return _independent("ttest_ind", a, b, unit, level)


def mannwhitney(a: Floats, b: Floats, unit: str, level: float) -> Outcome:
    """The Mann-Whitney U test of independent groups."""
    p = float(stats.mannwhitneyu(a, b, alternative="two-sided").pvalue)
    floor = smallest_p("mannwhitney", len(a), len(b))
    return replace(_independent("mannwhitney", a, b, unit, level), p=p, floor=floor)


def _independent(test: str, a: Floats, b: Floats, unit: str, level: float) -> Outcome:
    effect = cohen_d_pooled(a, b)
    if is_constant(a) and is_constant(b):
        note = f"neither method varies over its {len(a)} {unit}: an unpaired test has nothing to measure"
        return Outcome(test, unit, math.nan, math.nan, math.nan, math.nan, math.nan, 0.0, len(a), effect, (note,))
    found = stats.ttest_ind(a, b, equal_var=test == "ttest_ind")
    low, high = found.confidence_interval(level)
    stderr = abs(float(a.mean() - b.mean()) / float(found.statistic)) if found.statistic else math.nan
    return Outcome(
        test, unit, float(found.pvalue), float(low), float(high), stderr, float(found.df), 0.0, len(a), effect
    )


SIMPLE: Mapping[str, Callable[[Floats, Floats, str, float], Outcome]] = {
    "ttest_rel": paired_t,
    "wilcoxon": wilcoxon,
    "mcnemar": mcnemar,
    "mcnemar_midp": lambda a, b, unit, level: mcnemar(a, b, unit, level, midp=True),
    "welch": welch,
    "ttest_ind": ttest_ind,
    "mannwhitney": mannwhitney,
}


def run_test(test: str, a: Floats, b: Floats, unit: str, level: float, codes: Ints | None = None) -> Outcome:
    """The named test of two methods over units, or over the items of clusters `codes`."""
    if codes is None:
        return permutation(a, b, unit, level) if test == "permutation" else SIMPLE[test](a, b, unit, level)
    if test not in CLUSTERED:
        raise StatisticsError(Fault(f"test='{test}'", "clustered items", f"one of {listed(CLUSTERED)} for clusters"))
    if test == "ttest_rel":
        return clustered_t(a - b, codes, level)
    sums, _ = cluster_totals(a - b, codes)
    zeros = np.zeros_like(sums)
    by_sums = permutation if test == "permutation" else wilcoxon
    found = by_sums(sums, zeros, CLUSTERS, level)
    return replace(clustered_t(a - b, codes, level), test=test, p=found.p, floor=found.floor)
