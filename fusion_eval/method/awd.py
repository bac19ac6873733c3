"""Adaptive Weight Disentanglement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Disentangle, Scale, Sum


class Awd(PipelineMethod):
    """theta_0 + lambda sum_t (tau_t - delta).

    Multi-task model merging via adaptive weight disentanglement, arXiv:2411.18729. delta minimises mean |cos(tau_i -
    delta, tau_j - delta)| + alpha |delta|_2, found in the span of the task vectors, where every gradient lies.

    Args:
        scaling: lambda.
        alpha: how much the norm of delta counts.
        steps: Adam's steps.
        lr: its learning rate.
        tensors: which tensors are merged and what the others become.
    """

    min_experts: ClassVar[int] = 2

    def __init__(
        self,
        scaling: Setting = 0.3,
        alpha: float = 0.1,
        steps: int = 300,
        lr: float = 0.01,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Disentangle(alpha, steps, lr), Sum(), Scale(scaling)], tensors=tensors)
