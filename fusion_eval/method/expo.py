"""Model extrapolation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Extrapolate, Sum


class ExPO(PipelineMethod):
    """theta = avg + alpha (avg - theta_0), avg the mean of the experts.

    ExPO, Weak-to-strong extrapolation, arXiv:2404.16792.

    Args:
        alpha: how far to go beyond the average.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        alpha: Setting = 0.1,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Sum(normalize=True), Extrapolate(alpha)], tensors=tensors)
