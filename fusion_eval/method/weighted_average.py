"""Weighted averaging of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Sum, Weights


class WeightedAverage(PipelineMethod):
    """theta = sum_t w_t theta_t / sum_t w_t. Model soups, arXiv:2203.05482.

    Args:
        weights: one per expert in the pool's order, or by expert name; None: equal.
        normalize: divide by the sum of the weights.
        tensors: which tensors are merged and what the others become.
    """

    needs_base: ClassVar[bool] = False

    def __init__(
        self, weights: Weights = None, normalize: bool = True, tensors: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__([Sum(weights, normalize)], tensors=tensors, origin="none")
