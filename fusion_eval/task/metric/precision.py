"""Macro average precision over the classes that have positives, one column at a time.

torchmetrics copies all scores twice to do it; here they stay where they are, in memory or in a file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.classification import MulticlassAveragePrecision, MultilabelAveragePrecision
from torchmetrics.utilities import dim_zero_cat

from fusion_eval.task.metric.auroc import class_areas, keeps, mean_of_present


class PresentClassPrecision(MulticlassAveragePrecision):
    """One-against-the-rest average precision, the mean over the classes among the targets."""

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(num_classes, average="macro", **kwargs)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add items; probabilities (N, C) are kept as they are, without a copy."""
        if keeps(self, preds, self.num_classes):
            self.preds.append(preds)
            self.target.append(target)
        else:
            super().update(preds, target)

    def compute(self) -> Tensor:  # type: ignore[override]
        """The mean; a UserWarning names absent classes."""
        labels = dim_zero_cat(self.target).cpu().numpy()
        parts = [self.preds] if isinstance(self.preds, Tensor) else self.preds
        areas = class_areas(parts, lambda c: labels == c, curve=average_precision)
        return mean_of_present(areas, "class")


class PresentLabelPrecision(MultilabelAveragePrecision):
    """Average precision of every label, the mean over the labels that have positives."""

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels, average="macro", **kwargs)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add items; probabilities (N, L) are kept as they are, without a copy."""
        if keeps(self, preds, self.num_labels):
            self.preds.append(preds)
            self.target.append(target)
        else:
            super().update(preds, target)

    def compute(self) -> Tensor:  # type: ignore[override]
        """The mean; a UserWarning names labels without positives."""
        table = dim_zero_cat(self.target).cpu().numpy()
        parts = [self.preds] if isinstance(self.preds, Tensor) else self.preds
        counted = None if self.ignore_index is None else table != self.ignore_index
        areas = class_areas(parts, lambda c: table[:, c] == 1, counted, average_precision)
        return mean_of_present(areas, "label")


def average_precision(scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> float:
    """sum_k (R_k - R_{k-1}) P_k over the distinct scores, or NaN without positives."""
    if not positive.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    hits = np.cumsum(positive[order], dtype=np.float64)[ends]
    return float((np.diff(hits, prepend=0.0) * hits / (ends + 1)).sum() / hits[-1])
