"""Regression metrics as item scores or as functions of weighted moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fusion_eval.stats.arrays import Floats
from fusion_eval.stats.item_metric import ItemMetric, additive_metric

if TYPE_CHECKING:
    from torchmetrics import Metric


_MOST_RANKED = 3_000


def regression_form(metric: Metric, name: str, x: Floats, y: Floats) -> Floats | ItemMetric | None:
    """The form of a metric of predictions x (N, D) and targets y (N, D), or None where none is known."""
    kind, plain = type(metric).__name__, getattr(metric, "num_outputs", 1) == 1
    if kind == "MeanAbsoluteError" and plain:
        return np.asarray(np.abs(x - y).mean(axis=1))
    if kind == "MeanSquaredError" and plain:
        errors = ((x - y) ** 2).mean(axis=1)
        return np.asarray(errors) if getattr(metric, "squared", True) else _root_mean(name, errors)
    if kind == "R2Score" and getattr(metric, "multioutput", "") == "uniform_average" and not metric.adjusted:
        return _r2(name, x, y)
    if kind in ("MeanPearson", "PearsonCorrCoef"):
        return _pearson(name, x, y)
    if kind in ("MeanSpearman", "SpearmanCorrCoef"):
        return _spearman(name, x, y)
    if kind == "KendallRankCorrCoef" and x.shape[1] == 1 and len(x) <= _MOST_RANKED:
        return _kendall(name, x[:, 0], y[:, 0])
    return None


def _root_mean(name: str, errors: Floats) -> ItemMetric:
    table = np.column_stack([errors, np.ones(len(errors))])
    return additive_metric(name, table, lambda s: np.sqrt(s[:, 0] / s[:, 1]), higher_is_better=False)


def _r2(name: str, x: Floats, y: Floats) -> ItemMetric:
    outputs = x.shape[1]
    centred = y - y.mean(axis=0)
    table = np.column_stack([(x - y) ** 2, centred, centred**2, np.ones(len(x))])

    def value_of(sums: Floats) -> Floats:
        residual, total, squares = (sums[:, i * outputs : (i + 1) * outputs] for i in range(3))
        spread = squares - total**2 / sums[:, -1:]
        return np.asarray(np.mean(1 - _ratio(residual, spread), axis=1))

    return additive_metric(name, table, value_of)


def _pearson(name: str, x: Floats, y: Floats) -> ItemMetric:
    outputs = x.shape[1]
    a, b = x - x.mean(axis=0), y - y.mean(axis=0)
    table = np.column_stack([a, b, a * b, a**2, b**2, np.ones(len(x))])

    def value_of(sums: Floats) -> Floats:
        total = sums[:, -1:]
        sa, sb, ab, aa, bb = (sums[:, i * outputs : (i + 1) * outputs] / total for i in range(5))
        spread = np.sqrt(np.maximum(aa - sa**2, 0) * np.maximum(bb - sb**2, 0))
        return np.asarray(np.mean(_ratio(ab - sa * sb, spread), axis=1))

    return additive_metric(name, table, value_of)


def _ratio(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 0)


def _spearman(name: str, x: Floats, y: Floats) -> ItemMetric:
    """Pearson's r of weighted mid-ranks."""
    ranked = [(_Ranks(x[:, d]), _Ranks(y[:, d])) for d in range(x.shape[1])]

    def of_weights(weights: Floats) -> Floats:
        total = weights.sum(axis=1, keepdims=True)
        values = []
        for first, second in ranked:
            a, b = first.of_weights(weights), second.of_weights(weights)
            a = a - (weights * a).sum(axis=1, keepdims=True) / total
            b = b - (weights * b).sum(axis=1, keepdims=True) / total
            spread = np.sqrt((weights * a * a).sum(axis=1) * (weights * b * b).sum(axis=1))
            values.append(_ratio((weights * a * b).sum(axis=1), spread))
        return np.asarray(np.mean(values, axis=0))

    return ItemMetric(name, len(x), of_weights, lambda index: _spearman(name, x[index], y[index]))


def _kendall(name: str, x: Floats, y: Floats) -> ItemMetric:
    """Tau-b (Kendall 1945): concordant less discordant pairs, over pairs that are tied in neither variable."""
    order = np.sign(x[:, None] - x) * np.sign(y[:, None] - y)
    groups = [np.unique(values, return_inverse=True)[1].reshape(-1) for values in (x, y)]

    def of_weights(weights: Floats) -> Floats:
        total = weights.sum(axis=1) ** 2
        untied = [total - (_group_sums(weights, group) ** 2).sum(axis=1) for group in groups]
        return np.asarray(_ratio(((weights @ order) * weights).sum(axis=1), np.sqrt(untied[0] * untied[1])))

    return ItemMetric(name, len(x), of_weights, lambda index: _kendall(name, x[index], y[index]))


def _group_sums(weights: Floats, group: Any) -> Floats:
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    return np.asarray(np.add.reduceat(weights[:, order], starts, axis=1))


class _Ranks:
    """Mid-ranks of one variable under weights: the weight below, and half of that of equal values."""

    def __init__(self, values: Floats) -> None:
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        new = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        self.starts = np.flatnonzero(new)
        group = np.cumsum(new) - 1
        self.group_of = np.empty(len(values), dtype=np.int64)
        self.group_of[self.order] = group

    def of_weights(self, weights: Floats) -> Any:
        """Ranks (B, N) for weights (B, N)."""
        groups = np.add.reduceat(weights[:, self.order], self.starts, axis=1)
        return (np.cumsum(groups, axis=1) - groups / 2)[:, self.group_of]
