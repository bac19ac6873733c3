"""p-values corrected for the number of tests in a family.

Holm 1979 and Bonferroni bound the chance of one false finding in the family; Benjamini and Hochberg 1995 bound the
share of false findings. The family is stated by the caller: the pairs of one metric, or the pairs of all metrics
together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from fusion_eval.errors import Fault, StatisticsError, did_you_mean, listed
from fusion_eval.stats.arrays import Floats

FAMILIES = ("metric", "all")


def _none(p: Floats) -> Floats:
    return p.copy()


def _bonferroni(p: Floats) -> Floats:
    return np.minimum(p * len(p), 1.0)


def _holm(p: Floats) -> Floats:
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(steps, 1.0)
    return corrected


def _fdr_bh(p: Floats) -> Floats:
    order = np.argsort(p, kind="stable")
    steps = p[order] * len(p) / np.arange(1, len(p) + 1)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.minimum.accumulate(steps[::-1])[::-1], 1.0)
    return corrected


CORRECTIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "holm": _holm,
    "bonferroni": _bonferroni,
    "fdr_bh": _fdr_bh,
    "none": _none,
}


def check_correction(name: str) -> str:
    """The name of a known correction."""
    if name not in CORRECTIONS:
        choices = list(CORRECTIONS)
        raise StatisticsError(Fault("correction", repr(name), f"one of {listed(choices)}", did_you_mean(name, choices)))
    return name


def correct(p_values: Sequence[float] | Floats, correction: str = "holm") -> Floats:
    """The corrected p-values of one family, in the given order; NaN stays NaN and does not count."""
    p = np.asarray(p_values, dtype=np.float64)
    known = ~np.isnan(p)
    corrected = np.full_like(p, np.nan)
    if known.any():
        corrected[known] = CORRECTIONS[check_correction(correction)](p[known])
    return corrected


def correct_by_family(p_values: Sequence[float], family_of: Sequence[Hashable], correction: str = "holm") -> Floats:
    """The p-values corrected within each family: tests with equal family labels count together."""
    p = np.asarray(p_values, dtype=np.float64)
    corrected = np.full_like(p, np.nan)
    for family in dict.fromkeys(family_of):
        members = np.array([label == family for label in family_of])
        corrected[members] = correct(p[members], correction)
    return corrected


def smallest_corrected(floor: float, family_size: int, correction: str) -> float:
    """The smallest corrected p that tests with the smallest possible p `floor` can reach in their family."""
    return float(correct([floor] * family_size, correction)[0])
