"""AUROC by items: exactly, by a table of wins, where that is small; else by DeLong's slopes.

With w the items' weights the area of a class is w_pos' M w_neg / (sum w_pos * sum w_neg), where M holds 1 for a
positive above a negative, 1/2 for a tie and 0 else (Hanley and McNeil 1982). Many resamples at once are one matrix
product. Where M is large, the first derivative by the weights replaces it (DeLong et al. 1988), whose error shrinks
with the items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusion_eval.stats.arrays import Floats
from fusion_eval.stats.item_metric import ItemMetric
from fusion_eval.stats.probability_metrics import binary_auroc

_MOST_PAIRS = 1_000_000
_MOST_SLOPES = 100_000_000
_BLOCK = 32


def mean_auroc(name: str, scores: Floats, positive: NDArray[Any], notes: tuple[str, ...] = ()) -> ItemMetric | None:
    """The mean area over the columns of scores (N, C) that have positives (N, C) and negatives; None for huge tables.

    Args:
        name: the metric's name.
        scores: one score per item and class.
        positive: which items are of the class; or the items' classes (N,), where each is of one.
        notes: kept with the metric.
    """
    counts = positive.sum(axis=0) if positive.ndim == 2 else np.bincount(positive, minlength=scores.shape[1])
    known = np.flatnonzero((counts > 0) & (counts < len(scores)))
    if not len(known):
        return None
    if float((counts[known] * (len(scores) - counts[known])).sum()) <= _MOST_PAIRS:
        return _exact(
            name, [_Wins(scores[:, c], _of_class(positive, int(c))) for c in known], notes, (scores, positive)
        )
    if len(scores) * len(known) > _MOST_SLOPES:
        return None
    return linear_metric(name, *_mean_slopes(name, scores, positive, known), notes)


def _of_class(positive: NDArray[Any], c: int) -> NDArray[np.bool_]:
    """Which items (N,) are of a class."""
    return positive[:, c] if positive.ndim == 2 else positive == c


def _mean_slopes(name: str, scores: Floats, positive: NDArray[Any], known: NDArray[np.int64]) -> tuple[float, Floats]:
    """The mean area over the known columns, and its derivative by the items' weights; one column at a time."""
    value, slopes = 0.0, np.zeros(len(scores))
    for start in range(0, len(known), _BLOCK):
        block = known[start : start + _BLOCK]
        for c, column in zip(block, np.ascontiguousarray(scores[:, block].T), strict=True):
            curve = binary_auroc(column, _of_class(positive, int(c)).astype(int), name=name)
            assert curve.slopes is not None
            value += curve.value / len(known)
            slopes += curve.slopes / len(known)
    return value, slopes


class _Wins:
    """Which positives beat which negatives by one score."""

    def __init__(self, scores: Floats, positive: NDArray[np.bool_]) -> None:
        self.positive, self.negative = np.flatnonzero(positive), np.flatnonzero(~positive)
        mine, theirs = scores[self.positive, None], scores[None, self.negative]
        self.table = (mine > theirs).astype(np.float32) + np.float32(0.5) * (mine == theirs)

    def area(self, weights: NDArray[Any]) -> Floats:
        """The area (B,) for weights (B, N); NaN where a resample lacks positives or negatives."""
        mine, theirs = weights[:, self.positive], weights[:, self.negative]
        won = ((mine @ self.table) * theirs).sum(axis=1, dtype=np.float64)
        pairs = mine.sum(axis=1, dtype=np.float64) * theirs.sum(axis=1, dtype=np.float64)
        return np.asarray(np.divide(won, pairs, out=np.full(len(weights), np.nan), where=pairs > 0))


def _exact(name: str, wins: Sequence[_Wins], notes: tuple[str, ...], source: tuple[Floats, NDArray[Any]]) -> ItemMetric:
    scores, positive = source

    def of_weights(weights: Floats) -> Floats:
        single = weights.astype(np.float32)
        areas = np.stack([each.area(single) for each in wins])
        known = ~np.isnan(areas)
        total = np.where(known, areas, 0.0).sum(axis=0)
        mean = np.divide(total, known.sum(axis=0), out=np.full(len(weights), np.nan), where=known.any(axis=0))
        return np.asarray(mean)

    def take(index: Any) -> ItemMetric:
        part = mean_auroc(name, scores[index], positive[index], notes)
        assert part is not None
        return part

    return ItemMetric(name, len(scores), of_weights, take, notes=notes)


def linear_metric(name: str, value: float, slopes: Floats, notes: tuple[str, ...] = ()) -> ItemMetric:
    """A metric by its first derivative in the items' weights."""

    def of_weights(weights: Floats) -> Floats:
        scaled = weights / weights.mean(axis=1, keepdims=True)
        return np.asarray(value + (scaled - 1.0) @ slopes)

    def take(index: Any) -> ItemMetric:
        return linear_metric(name, value, slopes[index], notes)

    return ItemMetric(name, len(slopes), of_weights, take, slopes=slopes, notes=notes)
