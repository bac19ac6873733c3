"""Macro areas under the curves of classes or labels, and AUROC from exact ranks.

The area under a ROC curve is the chance that a positive outranks a negative, ties counting half (Hanley and McNeil
1982). A class without positives, or without negatives, has no curve: torchmetrics counts it as zero, here it is left
out and named.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import BinaryAUROC, MulticlassAUROC, MultilabelAUROC
from torchmetrics.utilities import dim_zero_cat

from fusion_eval.errors import listed
from fusion_eval.task.battery import MetricUnavailable

_BLOCK = 32

Curve = Callable[[NDArray[np.float32], NDArray[np.bool_]], float]
"""The area under one curve, from scores and truth values; NaN where there is none."""


class ColumnCurves(Metric):
    """Mixin: the mean of the areas under one curve per column of scores, which stay where they are, without a copy."""

    preds: Any
    target: Any
    ignore_index: int | None
    curve: ClassVar[Any]  # a static Curve: as a Callable it would be taken for a method

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add items; probabilities (N, columns) are kept as they are."""
        if keeps(self, preds, self._columns()):
            self.preds.append(preds)
            self.target.append(target)
        else:
            super().update(preds, target)  # type: ignore[safe-super]

    def _areas(self, positives: Any, counted: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        parts = [self.preds] if isinstance(self.preds, Tensor) else self.preds
        return class_areas(parts, positives, counted, self.curve)

    @abstractmethod
    def _columns(self) -> int:
        """How many columns the scores have."""


class ClassCurves(ColumnCurves):
    """Mixin: one class against the rest, the mean over the classes that have a curve."""

    num_classes: int

    def _columns(self) -> int:
        return self.num_classes

    def compute(self) -> Any:
        """The mean area; a UserWarning names classes without a curve."""
        labels = dim_zero_cat(self.target).cpu().numpy()
        return mean_of_present(self._areas(lambda c: labels == c), "class")


class LabelCurves(ColumnCurves):
    """Mixin: every label by itself, the mean over the labels that have a curve."""

    num_labels: int

    def _columns(self) -> int:
        return self.num_labels

    def compute(self) -> Any:
        """The mean area; a UserWarning names labels without a curve."""
        table = dim_zero_cat(self.target).cpu().numpy()
        counted = None if self.ignore_index is None else table != self.ignore_index
        return mean_of_present(self._areas(lambda c: table[:, c] == 1, counted), "label")


def area(scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> float:
    """The area under one ROC curve, or NaN."""
    chosen = np.sort(scores[positive])
    others = len(scores) - len(chosen)
    if not len(chosen) or not others:
        return float("nan")
    ranked = np.sort(scores)
    below, through = np.searchsorted(ranked, chosen, "left"), np.searchsorted(ranked, chosen, "right")
    own_below, own_through = np.searchsorted(chosen, chosen, "left"), np.searchsorted(chosen, chosen, "right")
    wins = (below - own_below).sum(dtype=np.float64) + (through - own_through).sum(dtype=np.float64)
    return float(wins / (2.0 * len(chosen) * others))


class PresentClassAUROC(ClassCurves, MulticlassAUROC):
    """One-against-the-rest AUROC, the mean over the classes among the targets."""

    curve = staticmethod(area)

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(num_classes, average="macro", **kwargs)


class PresentLabelAUROC(LabelCurves, MultilabelAUROC):
    """AUROC of every label, the mean over the labels that have positives and negatives."""

    curve = staticmethod(area)

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels, average="macro", **kwargs)


class ExactBinaryAUROC(BinaryAUROC):
    """The area under the ROC curve of one score per item; unavailable where the targets hold one class only."""

    def compute(self) -> Tensor:  # type: ignore[override]
        """The area."""
        preds, target = dim_zero_cat(self.preds), dim_zero_cat(self.target)
        areas = class_areas([preds[:, None]], lambda _: target.cpu().numpy() == 1)
        return mean_of_present(areas, "class")


def keeps(metric: Any, preds: Tensor, columns: int) -> bool:
    """Whether scores (N, C) can be kept as they are, without a copy: shares, and none to be ignored."""
    plain = preds.ndim == 2 and metric.ignore_index is None and preds.is_floating_point()
    return plain and preds.shape[1] == columns and bool(preds.numel()) and _are_shares(preds)


def _are_shares(preds: Tensor) -> bool:
    low, high = torch.aminmax(preds)
    return bool(low >= 0) and bool(high <= 1)


def class_areas(
    scores: Sequence[Tensor],
    positives: Any,
    counted: NDArray[np.bool_] | None = None,
    curve: Curve = area,
) -> NDArray[np.float64]:
    """The area (C,) of every column of scores (N, C); NaN where a column has no curve.

    Args:
        scores: one score per item and class, in one table or in several.
        positives: maps a class to the truth values (N,) of its items.
        counted: entries (N, C) that count, or None for all.
        curve: the area under one curve, from scores and truth values.
    """
    columns = scores[0].shape[1]
    areas = np.full(columns, np.nan)
    for start in range(0, columns, _BLOCK):
        parts = [table[:, start : start + _BLOCK].detach().cpu().float() for table in scores]
        for offset, column in enumerate(torch.cat(parts).T.contiguous().numpy()):
            index = start + offset
            positive = positives(index)
            if counted is not None:
                column, positive = column[counted[:, index]], positive[counted[:, index]]
            areas[index] = curve(column, positive)
    return areas


def mean_of_present(areas: NDArray[np.float64], noun: str) -> Tensor:
    """The mean of the areas that exist.

    Raises:
        MetricUnavailable: there is none.
    """
    known = ~np.isnan(areas)
    if not known.any():
        raise MetricUnavailable("no class has both positives and negatives among the targets")
    absent = [str(index) for index in np.flatnonzero(~known)]
    if absent:
        plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
        warnings.warn(
            f"mean over {int(known.sum())} of {len(areas)} {plural}; no curve for {listed(absent)}",
            UserWarning,
            stacklevel=2,
        )
    return torch.tensor(areas[known].mean(), dtype=torch.float64)
