"""WUDI-Merging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import LeastInterference, Scale


class Wudi(PipelineMethod):
    """theta_0 + lambda argmin_T sum_t |(T - tau_t) tau_t^T|^2 / |tau_t|^2, by Adam from sum_t tau_t.

    WUDI, arXiv:2503.08099.

    Args:
        scaling: lambda.
        steps: Adam's steps.
        lr: its learning rate.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        scaling: Setting = 1.0,
        steps: int = 400,
        lr: float = 1e-5,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([LeastInterference(steps, lr), Scale(scaling)], tensors=tensors)
