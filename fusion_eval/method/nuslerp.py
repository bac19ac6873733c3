"""Spherical interpolation by weights, of tensors, rows or columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import NuSlerp as NuSlerpStep
from fusion_eval.method.step import NuSlerpRows, Weights


class NuSlerp(PipelineMethod):
    """[sin((1-t) w) a + sin(t w) b] / sin w with t = w_2 / (w_1 + w_2). Shoemake, SIGGRAPH 1985.

    Args:
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        per: one angle for a `tensor`, for each `row`, or each `column`.
        origin: `none` interpolates the weights, `base` the task vectors, `average` what differs from the average.
        tensors: which tensors are merged and what the others become.
    """

    needs_base: ClassVar[bool] = False
    min_experts: ClassVar[int] = 2
    max_experts: ClassVar[int | None] = 2

    def __init__(
        self,
        weights: Weights = None,
        per: str = "tensor",
        origin: str = "none",
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        step = NuSlerpStep(weights) if per == "tensor" else NuSlerpRows(weights, per)
        super().__init__([step], tensors=tensors, origin=origin)
