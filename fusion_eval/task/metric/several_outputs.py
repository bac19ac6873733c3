"""Regression metrics over several outputs: the mean over outputs, so that each data set gets one number."""

from __future__ import annotations

from torch import Tensor
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef


class MeanPearson(PearsonCorrCoef):
    """Pearson's r, the mean over outputs."""

    def compute(self) -> Tensor:
        """The mean."""
        return super().compute().mean()


class MeanSpearman(SpearmanCorrCoef):
    """Spearman's rank correlation, the mean over outputs."""

    def compute(self) -> Tensor:
        """The mean."""
        return super().compute().mean()
