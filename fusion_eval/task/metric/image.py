"""Image metrics that say when they cannot be had."""

from __future__ import annotations

from torch import Tensor
from torchmetrics.image import MultiScaleStructuralSimilarityIndexMeasure

from fusion_eval.task.battery import MetricUnavailable


class MultiScaleSimilarity(MultiScaleStructuralSimilarityIndexMeasure):
    """MS-SSIM, unavailable on images that are too small for its five scales."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add images (N, C, H, W)."""
        size = self.kernel_size if isinstance(self.kernel_size, int) else max(self.kernel_size)
        least = (size - 1) * max(1, len(self.betas) - 1) ** 2
        if min(preds.shape[-2:]) <= least:
            found = f"images of {preds.shape[-2]} x {preds.shape[-1]} pixels; its five scales need more than {least}"
            raise MetricUnavailable(found)
        super().update(preds, target)
