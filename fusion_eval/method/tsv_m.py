"""TSV-Merge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Scale, TaskSingularVectors, Weights


class TsvM(PipelineMethod):
    """Leading singular vectors of every task, made orthogonal. Task singular vectors, arXiv:2412.00081, algorithm 1.

    theta_0 + lambda polar([U_1 ... U_N]) diag(S_1 ... S_N) polar([V_1 ... V_N]) for matrices; the mean of tau_t for the
    rest.

    Args:
        scaling: lambda.
        rank: the share of directions that each task keeps; None: 1/N.
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        scaling: Setting = 1.0,
        rank: float | None = None,
        weights: Weights = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([TaskSingularVectors(weights, rank), Scale(scaling)], tensors=tensors)
