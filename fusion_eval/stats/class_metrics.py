"""Accuracy, precision, recall, F1 and IoU as functions of item weights, from per-item counts of hits and misses.

Counts are (items, 3C): true positives, false positives and false negatives of every class. One item is a labelled
example or a whole label map, so the same functions serve classification and dense prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from fusion_eval.errors import Fault, StatisticsError, did_you_mean, listed
from fusion_eval.stats.arrays import Floats, Ints
from fusion_eval.stats.item_metric import ItemMetric, Statistics, additive_metric

_FORMS: Mapping[str, Callable[[Floats, Floats, Floats], tuple[Floats, Floats]]] = {
    "precision": lambda tp, fp, fn: (tp, tp + fp),
    "recall": lambda tp, fp, fn: (tp, tp + fn),
    "f1": lambda tp, fp, fn: (2 * tp, 2 * tp + fp + fn),
    "iou": lambda tp, fp, fn: (tp, tp + fp + fn),
}
AVERAGES = ("macro", "micro")


def label_counts(preds: ArrayLike, target: ArrayLike, num_classes: int) -> sparse.csr_matrix:
    """Sparse counts (items, 3C) of labelled examples: a hit, or a false positive and a false negative, per item."""
    p, t = _labels("preds", preds, num_classes), _labels("target", target, num_classes)
    if len(p) != len(t):
        raise StatisticsError(Fault("preds", f"{len(p)} labels", f"{len(t)}, as many as the target has"))
    items, right = np.arange(len(p)), p == t
    rows = np.concatenate([items[right], items[~right], items[~right]])
    columns = np.concatenate([t[right], num_classes + p[~right], 2 * num_classes + t[~right]])
    return sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(p), 3 * num_classes))


def map_counts(
    preds: Sequence[ArrayLike], target: Sequence[ArrayLike], num_classes: int, ignore: int | None = None
) -> Floats:
    """Dense counts (items, 3C) of label maps, pixels with the target `ignore` left out."""
    if len(preds) != len(target):
        raise StatisticsError(Fault("preds", f"{len(preds)} maps", f"{len(target)}, as many as the target has"))
    return np.stack([_one_map(p, t, num_classes, ignore) for p, t in zip(preds, target, strict=True)])


def _one_map(preds: ArrayLike, target: ArrayLike, num_classes: int, ignore: int | None) -> Floats:
    p, t = np.asarray(preds).ravel(), np.asarray(target).ravel()
    if p.shape != t.shape:
        raise StatisticsError(Fault("preds", f"a map of {p.size} pixels", f"{t.size} pixels, as in the target"))
    if ignore is not None:
        p, t = p[t != ignore], t[t != ignore]
    p, t = _labels("preds", p, num_classes), _labels("target", t, num_classes)
    confusion = np.bincount(t * num_classes + p, minlength=num_classes**2).reshape(num_classes, num_classes)
    return counts_of_confusion(confusion)


def counts_of_confusion(confusion: ArrayLike) -> Floats:
    """Counts (..., 3C) of confusion matrices (..., C, C) with targets in rows and predictions in columns."""
    matrix = np.asarray(confusion, dtype=np.float64)
    hits = np.diagonal(matrix, axis1=-2, axis2=-1)
    return np.concatenate([hits, matrix.sum(axis=-2) - hits, matrix.sum(axis=-1) - hits], axis=-1)


def _labels(where: str, labels: ArrayLike, num_classes: int) -> Ints:
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "biu":
        raise StatisticsError(Fault(where, f"shape {array.shape} of {array.dtype}", "one whole number per item"))
    outside = (array < 0) | (array >= num_classes)
    if outside.any():
        found = listed([str(value) for value in np.unique(array[outside])])
        raise StatisticsError(Fault(where, f"labels {found}", f"0 to {num_classes - 1}"))
    return array.astype(np.int64)


def count_metric(
    form: str, counts: Statistics, *, average: str = "macro", cells: Ints | None = None, name: str | None = None
) -> ItemMetric:
    """Precision, recall, F1 or IoU over counts (items, 3C).

    `macro` is the mean over the classes that occur in targets or predictions; a class that occurs in neither has no
    value and does not count. `micro` pools all classes.
    """
    if form not in _FORMS:
        raise StatisticsError(Fault("metric", repr(form), f"one of {listed(list(_FORMS))}", did_you_mean(form, _FORMS)))
    if average not in AVERAGES:
        raise StatisticsError(Fault("average", repr(average), f"one of {listed(AVERAGES)}"))
    fraction = _FORMS[form]

    def value_of(sums: Floats) -> Floats:
        tp, fp, fn = np.split(sums, 3, axis=1)
        if average == "micro":
            tp, fp, fn = (part.sum(axis=1, keepdims=True) for part in (tp, fp, fn))
        return _mean_over_present(*fraction(tp, fp, fn), tp + fp + fn > 0)

    title = name or (form if average == "macro" else f"{form}_{average}")
    return additive_metric(title, counts, value_of, cells=cells, notes=_absent(title, counts))


def _mean_over_present(top: Floats, bottom: Floats, present: NDArray[np.bool_]) -> Floats:
    ratio = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
    number = present.sum(axis=1)
    total = (ratio * present).sum(axis=1)
    return np.asarray(np.divide(total, number, out=np.full(len(top), np.nan), where=number > 0))


def _absent(name: str, counts: Statistics) -> tuple[str, ...]:
    tp, _, fn = np.split(np.asarray(counts.sum(axis=0)).ravel(), 3)
    absent = [str(i) for i in np.flatnonzero(tp + fn == 0)]
    return (
        (f"{name}: {len(absent)} of {len(tp)} classes never occur in the targets: {listed(absent)}",) if absent else ()
    )


def label_metric(
    form: str, preds: ArrayLike, target: ArrayLike, num_classes: int, *, average: str = "macro"
) -> ItemMetric:
    """Accuracy, precision, recall, F1 or IoU of labelled examples, shape (items,) each."""
    counts = label_counts(preds, target, num_classes)
    cells = np.asarray(target, dtype=np.int64) * num_classes + np.asarray(preds, dtype=np.int64)
    if form == "accuracy":
        return count_metric("recall", counts, average="micro", cells=cells, name="accuracy")
    return count_metric(form, counts, average=average, cells=cells)
