"""Model Stock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Stock, StockRows


class ModelStock(PipelineMethod):
    """theta = r avg + (1 - r) theta_0, r = N cos / (1 + (N - 1) cos) per tensor. Model Stock, arXiv:2403.19522, eq. 5.

    cos is the mean cosine over pairs of task vectors.

    Args:
        filter_wise: one ratio per row rather than per tensor.
        tensors: which tensors are merged and what the others become.
    """

    min_experts: ClassVar[int] = 2

    def __init__(
        self,
        filter_wise: bool = False,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([StockRows() if filter_wise else Stock()], tensors=tensors)
