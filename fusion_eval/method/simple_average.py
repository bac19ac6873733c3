"""Simple averaging of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Sum


class SimpleAverage(PipelineMethod):
    """theta = (1/N) sum_t theta_t. Model soups (uniform), arXiv:2203.05482."""

    needs_base: ClassVar[bool] = False

    def __init__(self, tensors: Mapping[str, Any] | None = None) -> None:
        super().__init__([Sum(normalize=True)], tensors=tensors, origin="none")
