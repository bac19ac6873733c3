"""Isotropic merging in the common subspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Isotropic, Scale


class IsoC(PipelineMethod):
    """theta_0 + lambda mean(S) U V, sum_t tau_t = U diag(S) V, for matrices; lambda mean tau_t else.

    Iso-C, arXiv:2502.04959.

    Args:
        scaling: lambda.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        scaling: Setting = 1.0,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Isotropic(), Scale(scaling)], tensors=tensors)
