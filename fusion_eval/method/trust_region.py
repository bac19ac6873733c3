"""Task arithmetic in the trust region, without data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Scale, Sum, TrustRegion


class TrustRegionTaskArithmetic(PipelineMethod):
    """theta_0 + lambda sum_t m tau_t, m without the entries of most conflict.

    Sun et al., TATR, ICLR 2025 (no arXiv id). conflict = sum_{i != j} |tau_i| |tau_j| (zero-shot: |tau_i| stands for
    the gradient); entries from its quantile on go.

    Args:
        scaling: lambda.
        quantile: of the conflict over the whole model.
        tensors: which tensors are merged and what the others become.
    """

    min_experts: ClassVar[int] = 2

    def __init__(
        self,
        scaling: Setting = 0.3,
        quantile: float = 0.99,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([TrustRegion(quantile), Sum(), Scale(scaling)], tensors=tensors)
