"""Average precision and binary calibration error by items."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusion_eval.stats.arrays import Floats
from fusion_eval.stats.item_metric import ItemMetric, additive_metric

_MOST_ENTRIES = 200_000


def mean_average_precision(name: str, scores: Floats, positive: NDArray[np.bool_]) -> ItemMetric | None:
    """The mean over columns with positives of sum_k (R_k - R_{k-1}) P_k over scores (N, C); None for large tables."""
    known = np.flatnonzero(positive.any(axis=0))
    if not len(known) or scores.shape[0] * len(known) > _MOST_ENTRIES:
        return None
    curves = [_Curve(scores[:, c], positive[:, c]) for c in known]

    def of_weights(weights: Floats) -> Floats:
        values = np.stack([curve.average_precision(weights) for curve in curves])
        exists = ~np.isnan(values)
        total = np.where(exists, values, 0.0).sum(axis=0)
        count = exists.sum(axis=0)
        return np.asarray(np.divide(total, count, out=np.full(len(weights), np.nan), where=count > 0))

    def take(index: Any) -> ItemMetric:
        part = mean_average_precision(name, scores[index], positive[index])
        assert part is not None
        return part

    return ItemMetric(name, len(scores), of_weights, take)


class _Curve:
    """Items sorted by falling score, and where runs of equal scores end."""

    def __init__(self, scores: Floats, positive: NDArray[np.bool_]) -> None:
        self.order = np.argsort(-scores, kind="stable")
        ordered = scores[self.order]
        self.ends = np.flatnonzero(np.concatenate([ordered[1:] != ordered[:-1], [True]]))
        self.positive = positive[self.order]

    def average_precision(self, weights: Floats) -> Floats:
        """The area (B,) for weights (B, N); NaN where a resample has no positives."""
        sorted_weights = weights[:, self.order]
        hits = np.cumsum(sorted_weights * self.positive, axis=1)[:, self.ends]
        found = np.cumsum(sorted_weights, axis=1)[:, self.ends]
        precision = np.divide(hits, found, out=np.zeros_like(hits), where=found > 0)
        area = (np.diff(hits, axis=1, prepend=0.0) * precision).sum(axis=1)
        total = hits[:, -1]
        return np.asarray(np.divide(area, total, out=np.full(len(weights), np.nan), where=total > 0))


def binary_calibration(name: str, probs: Floats, target: NDArray[Any], bins: int) -> ItemMetric:
    """The gap between the positive class's probability and its frequency over equal bins, weighted by their shares."""
    edges = np.linspace(0.0, 1.0, bins + 1)
    inside = np.clip(np.searchsorted(edges, probs, side="right") - 1, 0, bins - 1)
    table = np.zeros((len(probs), bins + 1))
    table[np.arange(len(probs)), inside] = probs - target
    table[:, bins] = 1.0

    def value_of(sums: Floats) -> Floats:
        return np.asarray(np.abs(sums[:, :bins]).sum(axis=1) / sums[:, bins])

    return additive_metric(name, table, value_of, higher_is_better=False)
