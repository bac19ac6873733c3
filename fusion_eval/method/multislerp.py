"""Spherical interpolation of any number of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import MultiSlerp as MultiSlerpStep
from fusion_eval.method.step import Weights


class MultiSlerp(PipelineMethod):
    """The weighted mean of directions in the tangent space at their mean direction, times the weighted mean norm.

    u_t = x_t / |x_t|; m = sum w_t u_t normalised; tau = sum w_t (u_t - <u_t, m> m);
    theta = (m cos|tau| + tau sin|tau| / |tau|) sum w_t |x_t|. One step of Buss and Fillmore, Spherical averages, TOG
    2001.

    Args:
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        normalize: divide the weights by their sum.
        eps: added to norms.
        origin: `none` interpolates the weights, `base` the task vectors, `average` what differs from the average.
        tensors: which tensors are merged and what the others become.
    """

    needs_base: ClassVar[bool] = False

    def __init__(
        self,
        weights: Weights = None,
        normalize: bool = True,
        eps: float = 1e-8,
        origin: str = "none",
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([MultiSlerpStep(weights, normalize, eps)], tensors=tensors, origin=origin)
