"""Task arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Scale, Sum, Weights


class TaskArithmetic(PipelineMethod):
    """theta = theta_0 + lambda sum_t w_t (theta_t - theta_0). Editing models with task arithmetic, arXiv:2212.04089.

    Args:
        scaling: lambda; negative to forget what the experts know (negation).
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        normalize: divide by the sum of the weights.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        scaling: Setting = 0.3,
        weights: Weights = None,
        normalize: bool = False,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Sum(weights, normalize), Scale(scaling)], tensors=tensors)
