"""LiNeS over task arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import DepthScale, Sum, Weights


class Lines(PipelineMethod):
    """theta_0 + (alpha + beta (l - 1) / (L - 1)) sum_t w_t tau_t in layer l of L. LiNeS, arXiv:2410.17146.

    Args:
        alpha: the factor of the first layer; None: |sum tau_t|_1 / (N |tau|_1), which is 1/N with equal weights.
        beta: how much larger the last layer's is.
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        last: a regular expression for tensors outside the layers that count as the last one; all others, and without it
            all, count as the first, as with the authors.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        alpha: float | None = None,
        beta: float = 0.5,
        weights: Weights = None,
        last: str | None = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Sum(weights), DepthScale(alpha, beta)], tensors=tensors, last=last)
