"""TIES-Merging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Elect, Scale, Trim, Weights


class Ties(PipelineMethod):
    """Trim, elect sign, disjoint merge. TIES-Merging: resolving interference when merging models, arXiv:2306.01708.

    tau^_t = the largest |tau_t|; gamma = sgn sum_t tau^_t; tau = mean of the tau^_t whose sign is gamma;
    theta = theta_0 + lambda tau.

    Args:
        density: the share of entries to keep, the paper's top-k %.
        scaling: lambda.
        combine: `mean` (the paper's), `sum` or `max` of the entries that agree.
        scope: rank magnitudes over the whole `model` (the paper's) or within each `tensor`.
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        density: Setting = 0.2,
        scaling: Setting = 1.0,
        combine: str = "mean",
        scope: str = "model",
        weights: Weights = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Trim(density, scope), Elect(combine, weights), Scale(scaling)], tensors=tensors)
