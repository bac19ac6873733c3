"""Pruning of one task vector by magnitude."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Scale, Sum, Trim


class MagnitudePruning(PipelineMethod):
    """theta_0 + lambda top_k(tau_1). The trim step of arXiv:2306.01708 on one expert.

    Args:
        density: the share of entries to keep.
        scaling: lambda.
        rescale: `none`; `density` divides by it; `norm` keeps each tensor's L1 norm.
        scope: rank within each `tensor`, each `row` of one, or over the whole `model`.
        tensors: which tensors are merged and what the others become.
    """

    max_experts: ClassVar[int | None] = 1

    def __init__(
        self,
        density: Setting = 0.5,
        scaling: Setting = 1.0,
        rescale: str = "none",
        scope: str = "tensor",
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Trim(density, scope, rescale), Sum(), Scale(scaling)], tensors=tensors)
