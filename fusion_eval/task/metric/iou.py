"""Intersection over union from hits and misses per class."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torchmetrics.classification import MulticlassStatScores


class ClassIoU(MulticlassStatScores):
    """tp / (tp + fp + fn), the Jaccard index: of all entries (micro), per class (none), or their mean (macro).

    The mean is over classes that occur in targets or predictions, as torchmetrics' is; the states are four counts per
    class instead of a confusion matrix.
    """

    higher_is_better = True

    def __init__(self, num_classes: int, average: str = "macro", **kwargs: Any) -> None:
        super().__init__(num_classes=num_classes, average=average, **kwargs)  # type: ignore[arg-type]

    def compute(self) -> Tensor:
        """The index."""
        hits, false, _, missed = (part.double() for part in self._final_state())
        union = hits + false + missed
        index = hits / union.clamp_min(1.0)
        if self.average != "macro":
            return index.squeeze() if self.average == "micro" else index
        return index.sum() / (union > 0).sum()
