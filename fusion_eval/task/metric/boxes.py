"""How well boxes sit on the objects that they find: overlap of one-to-one matches.

torchmetrics' IoU family averages over every pair of boxes of one label, so that a perfect detector of two objects
scores 0.5. Here boxes are matched first (largest total IoU, per image and label) and only matched pairs count; what is
missed or invented is the business of mAP and mAR.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fusion_eval.task.battery import MetricUnavailable

_OVERLAPS = {
    "iou": "box_iou",
    "giou": "generalized_box_iou",
    "diou": "distance_box_iou",
    "ciou": "complete_box_iou",
}


class MatchedOverlap(Metric):
    """Mean overlap of matched boxes (x1, y1, x2, y2).

    Args:
        kind: iou, giou (arXiv:1902.09630), diou or ciou (arXiv:1911.08287).
        threshold: the smallest IoU of a match; 0 takes every assigned pair, also one that does not overlap.
        **kwargs: see torchmetrics.
    """

    higher_is_better = True
    full_state_update = False
    total: Tensor
    pairs: Tensor

    def __init__(self, kind: str = "iou", threshold: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind, self.threshold = kind, threshold
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("pairs", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, preds: list[dict[str, Tensor]], target: list[dict[str, Tensor]]) -> None:
        """Add images: boxes and labels of the predictions and of the objects."""
        from torchvision import ops

        overlap: Callable[[Tensor, Tensor], Tensor] = getattr(ops, _OVERLAPS[self.kind])
        for found, truth in zip(preds, target, strict=True):
            for mine, theirs in matched_boxes(found, truth, self.threshold):
                values = overlap(mine, theirs).diagonal()
                self.total = self.total + values.double().sum()
                self.pairs = self.pairs + len(values)

    def compute(self) -> Tensor:
        """The mean over matched pairs."""
        if not self.pairs:
            raise MetricUnavailable("no predicted box has an object of its label to match")
        return self.total / self.pairs


def matched_boxes(
    found: dict[str, Tensor], truth: dict[str, Tensor], threshold: float = 0.0
) -> list[tuple[Tensor, Tensor]]:
    """Matched boxes ((M, 4), (M, 4)) of one image, label by label."""
    from scipy.optimize import linear_sum_assignment
    from torchvision.ops import box_iou

    pairs = []
    for label in torch.unique(truth["labels"]):
        mine, theirs = found["boxes"][found["labels"] == label], truth["boxes"][truth["labels"] == label]
        if not len(mine):
            continue
        overlaps = box_iou(mine.float(), theirs.float())
        rows, columns = linear_sum_assignment(overlaps.cpu().numpy(), maximize=True)
        kept = [(i, j) for i, j in zip(rows, columns, strict=True) if overlaps[i, j] >= threshold]
        if kept:
            left, right = zip(*kept, strict=True)
            pairs.append((mine[list(left)].float(), theirs[list(right)].float()))
    return pairs
