"""Arcee Fusion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import FuseImportant


class ArceeFusion(PipelineMethod):
    """theta_0 + m tau, m where |tau| KL(softmax theta_1 || softmax theta_0) >= median + 1.5 IQR. No paper (mergekit).

    Args:
        tensors: which tensors are merged and what the others become.
    """

    max_experts: ClassVar[int | None] = 1

    def __init__(
        self,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([FuseImportant()], tensors=tensors)
