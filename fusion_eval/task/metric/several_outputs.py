"""Regression metrics over several outputs: the mean over outputs, so that each data set gets one number."""

from __future__ import annotations

from torch import Tensor
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef
from torchmetrics.utilities import dim_zero_cat

from fusion_eval.task.battery import MetricUnavailable


class MeanPearson(PearsonCorrCoef):
    """Pearson's r, the mean over outputs."""

    def compute(self) -> Tensor:
        """The mean."""
        return super().compute().mean()


class MeanSpearman(SpearmanCorrCoef):
    """Spearman's rank correlation, the mean over outputs."""

    def compute(self) -> Tensor:
        """The mean.

        Raises:
            MetricUnavailable: predictions or targets that do not vary, for which torchmetrics gives zero.
        """
        for name, values in (("predictions", dim_zero_cat(self.preds)), ("targets", dim_zero_cat(self.target))):
            if bool((values.amax(0) == values.amin(0)).any()):
                raise MetricUnavailable(f"the {name} do not vary")
        return super().compute().mean()
