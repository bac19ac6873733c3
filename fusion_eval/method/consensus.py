"""Consensus Merging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Consensus, Elect, Scale, Sum, Trim


class ConsensusTaskArithmetic(PipelineMethod):
    """theta_0 + lambda [sum_t m_t >= k] tau, tau = sum_t tau_t.

    Localizing task information (TALL masks), arXiv:2405.07813.

    Args:
        scaling: lambda.
        mask_threshold: lambda of the masks |tau_t| > lambda |tau - tau_t|.
        agree: how many experts' masks must be on.
        tensors: which tensors are merged and what the others become.
    """

    min_experts: ClassVar[int] = 2

    def __init__(
        self,
        scaling: Setting = 0.3,
        mask_threshold: Setting = 0.6,
        agree: Setting = 2,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Sum(), Consensus(mask_threshold, agree), Scale(scaling)], tensors=tensors)


class ConsensusTies(PipelineMethod):
    """theta_0 + lambda [sum_t m_t >= k] tau, tau by TIES (arXiv:2306.01708). Consensus Merging, arXiv:2405.07813.

    Args:
        density: the share of entries that TIES keeps.
        scaling: lambda.
        mask_threshold: lambda of the masks |tau_t| > lambda |tau - tau_t|.
        agree: how many experts' masks must be on.
        combine: `mean`, `sum` or `max` of the entries that agree with the elected sign.
        scope: rank magnitudes over the whole `model` or within each `tensor`.
        tensors: which tensors are merged and what the others become.
    """

    min_experts: ClassVar[int] = 2

    def __init__(
        self,
        density: Setting = 0.2,
        scaling: Setting = 1.0,
        mask_threshold: Setting = 0.6,
        agree: Setting = 2,
        combine: str = "sum",
        scope: str = "model",
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            [Trim(density, scope), Elect(combine), Consensus(mask_threshold, agree), Scale(scaling)], tensors=tensors
        )
