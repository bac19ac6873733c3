"""Isotropic merging in common and task-specific subspaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import IsotropicWithTasks, Scale


class IsoCts(PipelineMethod):
    """theta_0 + lambda mean(S) polar(U) polar(V): common directions and each task's own.

    Iso-CTS, arXiv:2502.04959, algorithm 1.

    Args:
        scaling: lambda.
        common: the share of directions that are common.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        scaling: Setting = 1.0,
        common: Setting = 0.8,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([IsotropicWithTasks(common), Scale(scaling)], tensors=tensors)
