"""AUROC and calibration error as functions of item weights.

The weighted AUROC is the chance that a positive outranks a negative, ties counting half (Mann and Whitney 1947;
Hanley and McNeil 1982). Calibration error follows Guo et al. 2017 (arXiv 1706.04599): equal bins of the top
probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from fusion_eval.errors import Fault, StatisticsError, listed
from fusion_eval.stats.arrays import Floats, Ints, as_floats
from fusion_eval.stats.item_metric import ItemMetric, additive_metric

_ROWS = 2_048


@final
@dataclass(frozen=True, slots=True)
class _Ranking:
    """Items sorted by one score, where runs of equal scores start, and which items are positive."""

    order: Ints
    starts: Ints
    positive: NDArray[np.bool_]

    def area(self, weights: Floats) -> Floats:
        """The area (B,) under the curve for weights (B, N); NaN where a resample lacks positives or negatives."""
        sorted_weights = weights[:, self.order]
        positive = np.add.reduceat(sorted_weights * self.positive, self.starts, axis=1)
        negative = np.add.reduceat(sorted_weights * ~self.positive, self.starts, axis=1)
        below = np.cumsum(negative, axis=1) - negative / 2
        pairs = positive.sum(axis=1) * negative.sum(axis=1)
        wins = (positive * below).sum(axis=1)
        return np.asarray(np.divide(wins, pairs, out=np.full(len(weights), np.nan), where=pairs > 0))

    def slopes(self) -> Floats:
        """The derivative of the area by every item's weight: DeLong's components, centred (DeLong et al. 1988)."""
        n = len(self.order)
        lengths = np.diff(np.append(self.starts, n))
        positive = np.add.reduceat(self.positive.astype(np.float64), self.starts)
        negative = lengths - positive
        wins = np.cumsum(negative) - negative / 2
        losses = positive.sum() - np.cumsum(positive) + positive / 2
        area = float((positive * wins).sum() / (positive.sum() * negative.sum()))
        beaten = np.repeat(wins, lengths) / negative.sum()
        beating = np.repeat(losses, lengths) / positive.sum()
        sorted_slopes = np.where(self.positive, (beaten - area) / positive.sum(), (beating - area) / negative.sum())
        slopes = np.empty(n)
        slopes[self.order] = sorted_slopes
        return slopes


def _ranking(scores: Floats, positive: NDArray[np.bool_]) -> _Ranking:
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    return _Ranking(order, starts, positive[order])


def binary_auroc(scores: ArrayLike, target: ArrayLike, *, name: str = "auroc") -> ItemMetric:
    """The area under the ROC curve of one score per item for targets 0 and 1.

    Raises:
        StatisticsError: the targets hold one class only, so that there is no curve.
    """
    values, labels = as_floats(f"{name}, scores", scores), _targets(name, target)
    if values.shape != labels.shape:
        raise StatisticsError(Fault(name, f"scores of shape {values.shape}", f"{labels.shape}, as the targets"))
    present = np.unique(labels)
    if present.tolist() != [0, 1]:
        found = f"targets {listed([str(label) for label in present])}"
        raise StatisticsError(
            Fault(name, found, "both 0 and 1", "Leave AUROC out, or evaluate on items of both classes.")
        )
    ranking = _ranking(values, labels == 1)
    return ItemMetric(
        name,
        len(values),
        ranking.area,
        lambda index: binary_auroc(values[index], labels[index], name=name),
        slopes=ranking.slopes(),
    )


def auroc(probabilities: ArrayLike, target: ArrayLike, *, name: str = "auroc") -> ItemMetric:
    """One-against-the-rest AUROC, the mean over the classes that the targets hold; scores (items, C).

    A class without targets has no curve: it is left out and named in the notes, not counted as zero.
    """
    values, labels = _table(name, probabilities, target)
    classes = values.shape[1]
    present = np.unique(labels)
    if len(present) < 2:
        raise StatisticsError(
            Fault(name, f"all targets are class {present[0]}", "at least two classes among the targets")
        )
    rankings = [_ranking(values[:, c], labels == c) for c in present]

    def of_weights(weights: Floats) -> Floats:
        areas = np.stack([ranking.area(weights) for ranking in rankings])
        known = ~np.isnan(areas)
        total = np.where(known, areas, 0.0).sum(axis=0)
        missing = np.full(len(weights), np.nan)
        return np.asarray(np.divide(total, known.sum(axis=0), out=missing, where=known.any(axis=0)))

    absent = [str(c) for c in range(classes) if c not in present]
    text = f"{name}: mean over {len(present)} of {classes} classes; no target for {listed(absent)}"
    notes = (text,) if absent else ()
    slopes = np.mean([ranking.slopes() for ranking in rankings], axis=0)
    return ItemMetric(
        name,
        len(labels),
        of_weights,
        lambda index: auroc(values[index], labels[index], name=name),
        slopes=slopes,
        notes=notes,
    )


def calibration_error(
    probabilities: ArrayLike, target: ArrayLike, *, bins: int = 15, norm: str = "l1", name: str = "ece"
) -> ItemMetric:
    """The gap between confidence and accuracy over equal bins of the top probability; scores (items, C).

    Args:
        probabilities: class probabilities, shape (items, C).
        target: class of every item.
        bins: the number of bins; the last one holds confidence 1.
        norm: "l1" weights the gaps by the bins' shares (expected calibration error), "max" takes the largest gap.
        name: the metric's name.
    """
    if norm not in ("l1", "max"):
        raise StatisticsError(Fault(f"{name}, norm", repr(norm), "'l1' or 'max'"))
    confidence, right = _top(name, probabilities, target)
    edges = np.linspace(0.0, 1.0, bins + 1)
    bin_of = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, bins - 1)
    items = np.arange(len(right))
    entries = (
        np.concatenate([confidence - right, np.ones(len(right))]),
        (np.tile(items, 2), np.append(bin_of, bins + bin_of)),
    )
    table = sparse.csr_matrix(entries, shape=(len(right), 2 * bins))

    def value_of(sums: Floats) -> Floats:
        gaps, inside = np.abs(sums[:, :bins]), sums[:, bins:]
        if norm == "l1":
            return np.asarray(gaps.sum(axis=1) / inside.sum(axis=1))
        return np.asarray(np.divide(gaps, inside, out=np.zeros_like(gaps), where=inside > 0).max(axis=1))

    return additive_metric(name, table, value_of, higher_is_better=False)


def _top(name: str, probabilities: ArrayLike, target: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    """The largest probability of every item, and whether its class is right; some rows at a time."""
    given = np.asarray(probabilities)
    labels = _targets(name, target)
    if given.ndim != 2 or len(given) != len(labels):
        _table(name, given, labels)  # says what is wrong
    confidence, right = np.empty(len(given)), np.empty(len(given), dtype=bool)
    for start in range(0, len(given), _ROWS):
        rows = slice(start, start + _ROWS)
        values, wanted = _table(name, given[rows], labels[rows])
        if values.min() < 0 or values.max() > 1 + 1e-6:
            found = f"values from {values.min():g} to {values.max():g}"
            raise StatisticsError(Fault(name, found, "probabilities", "Apply softmax."))
        confidence[rows], right[rows] = values.max(axis=1), values.argmax(axis=1) == wanted
    return confidence, right


def _targets(name: str, target: ArrayLike) -> Ints:
    labels = np.asarray(target)
    if labels.ndim != 1 or labels.dtype.kind not in "biu":
        raise StatisticsError(Fault(f"{name}, target", f"shape {labels.shape} of {labels.dtype}", "one class per item"))
    return labels.astype(np.int64)


def _table(name: str, probabilities: ArrayLike, target: ArrayLike) -> tuple[Floats, Ints]:
    values, labels = as_floats(f"{name}, probabilities", probabilities), _targets(name, target)
    if values.ndim != 2 or len(values) != len(labels):
        found = f"probabilities of shape {values.shape} for {len(labels)} targets"
        raise StatisticsError(Fault(name, found, "(items, classes)"))
    if labels.min() < 0 or labels.max() >= values.shape[1]:
        found = f"targets from {labels.min()} to {labels.max()}"
        raise StatisticsError(Fault(name, found, f"0 to {values.shape[1] - 1}, the columns of the probabilities"))
    return values, labels
