"""MagMax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import MaxMagnitude, Scale


class MagMax(PipelineMethod):
    """theta_0 + lambda (per entry the tau_t of largest magnitude). MagMax, arXiv:2407.06322.

    Args:
        scaling: lambda.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        scaling: Setting = 0.5,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([MaxMagnitude(), Scale(scaling)], tensors=tensors)
