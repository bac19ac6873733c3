"""Singular Value Calibration of task arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import CalibrateSpectrum, Scale, Sum


class SvcTaskArithmetic(PipelineMethod):
    """Task arithmetic whose singular values are shrunk where tasks overlap.

    Singular Value Calibration, arXiv:2602.05536. lambda sum tau_t = U S V; gamma_r = N / sum_t max(alpha, <u_r dW, u_r
    tau_t> / |u_r tau_t|^2); theta_0 + U diag(gamma S) V.

    Args:
        scaling: lambda.
        alpha: the least response of a task to a direction that is taken into account.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        scaling: Setting = 0.3,
        alpha: Setting = 0.1,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Sum(), Scale(scaling), CalibrateSpectrum(alpha)], tensors=tensors)
