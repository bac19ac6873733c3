"""Model Breadcrumbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Elect, MaskOutliers, Scale, Sum, Weights


class Breadcrumbs(PipelineMethod):
    """theta_0 + lambda sum_t m_t tau_t, m_t without each tensor's largest and smallest.

    Model Breadcrumbs, arXiv:2312.06795.

    Args:
        density: the share of entries to keep, gamma - beta of the paper.
        gamma: the share of largest magnitudes to drop, 1 - gamma of the paper.
        scaling: lambda.
        rescale: `none` (the paper's), or `norm`: keep the L1 norm of each tensor.
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        density: Setting = 0.14,
        gamma: Setting = 0.01,
        scaling: Setting = 0.3,
        rescale: str = "none",
        weights: Weights = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([MaskOutliers(density, gamma, rescale), Sum(weights), Scale(scaling)], tensors=tensors)


class BreadcrumbsTies(PipelineMethod):
    """Breadcrumbs' masked task vectors (arXiv:2312.06795), merged by TIES' election (arXiv:2306.01708).

    Args:
        density: the share of entries to keep, gamma - beta of the paper.
        gamma: the share of largest magnitudes to drop, 1 - gamma of the paper.
        scaling: lambda.
        rescale: `none` (the paper's), or `norm`: keep the L1 norm of each tensor.
        combine: `mean` (TIES' own), `sum` or `max` of the entries that agree.
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        density: Setting = 0.14,
        gamma: Setting = 0.01,
        scaling: Setting = 1.0,
        rescale: str = "none",
        combine: str = "mean",
        weights: Weights = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            [MaskOutliers(density, gamma, rescale), Elect(combine, weights), Scale(scaling)], tensors=tensors
        )
