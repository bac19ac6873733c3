"""Macro AUROC over the classes that have a curve, from exact ranks.

The area under a ROC curve is the chance that a positive outranks a negative, ties counting half (Hanley and McNeil
1982). A class without positives, or without negatives, has no curve: torchmetrics counts it as zero, here it is left
out and named.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.classification import BinaryAUROC, MulticlassAUROC, MultilabelAUROC
from torchmetrics.utilities import dim_zero_cat

from fusion_eval.errors import listed
from fusion_eval.task.battery import MetricUnavailable

_BLOCK = 32


class PresentClassAUROC(MulticlassAUROC):
    """One-against-the-rest AUROC, the mean over the classes among the targets."""

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
        """The mean area; a UserWarning names absent classes."""
        labels = dim_zero_cat(self.target).cpu().numpy()
        parts = [self.preds] if isinstance(self.preds, Tensor) else self.preds
        areas = class_areas(parts, lambda c: labels == c)
        return mean_of_present(areas, "class")


class PresentLabelAUROC(MultilabelAUROC):
    """AUROC of every label, the mean over the labels that have positives and negatives."""

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(num_labels, average="macro", **kwargs)

    def compute(self) -> Tensor:  # type: ignore[override]
        """The mean area; a UserWarning names labels without a curve."""
        preds, target = dim_zero_cat(self.preds), dim_zero_cat(self.target)
        table = target.cpu().numpy()
        counted = None if self.ignore_index is None else table != self.ignore_index
        areas = class_areas([preds], lambda c: table[:, c] == 1, counted)
        return mean_of_present(areas, "label")


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
    curve: Callable[[NDArray[np.float32], NDArray[np.bool_]], float] | None = None,
) -> NDArray[np.float64]:
    """The area (C,) of every column of scores (N, C); NaN where a column has no curve.

    Args:
        scores: one score per item and class, in one table or in several.
        positives: maps a class to the truth values (N,) of its items.
        counted: entries (N, C) that count, or None for all.
        curve: the area under one curve, from scores and truth values; by default the ROC curve's.
    """
    measured = area if curve is None else curve
    columns = scores[0].shape[1]
    areas = np.full(columns, np.nan)
    for start in range(0, columns, _BLOCK):
        parts = [table[:, start : start + _BLOCK].detach().cpu().float() for table in scores]
        for offset, column in enumerate(torch.cat(parts).T.contiguous().numpy()):
            index = start + offset
            positive = positives(index)
            if counted is not None:
                column, positive = column[counted[:, index]], positive[counted[:, index]]
            areas[index] = measured(column, positive)
    return areas


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
