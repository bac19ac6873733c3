"""Macro average precision over the classes that have positives, one column at a time.

torchmetrics copies all scores twice to do it; here they stay where they are, in memory or in a file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torchmetrics.classification import MulticlassAveragePrecision, MultilabelAveragePrecision

from fusion_eval.task.metric.auroc import ClassCurves, LabelCurves


def average_precision(scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> float:
    """sum_k (R_k - R_{k-1}) P_k over the distinct scores, or NaN without positives."""
    if not positive.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    hits = np.cumsum(positive[order], dtype=np.float64)[ends]
    return float((np.diff(hits, prepend=0.0) * hits / (ends + 1)).sum() / hits[-1])


class PresentClassPrecision(ClassCurves, MulticlassAveragePrecision):
    """One-against-the-rest average precision, the mean over the classes among the targets."""

    curve = staticmethod(average_precision)

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(num_classes, average="macro", **kwargs)


class PresentLabelPrecision(LabelCurves, MultilabelAveragePrecision):
    """Average precision of every label, the mean over the labels that have positives."""

    curve = staticmethod(average_precision)

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels, average="macro", **kwargs)
