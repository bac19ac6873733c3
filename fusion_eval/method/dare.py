"""DARE: drop and rescale, then task arithmetic or TIES."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Drop, Elect, Scale, Sum, Weights


class Dare(PipelineMethod):
    """theta = theta_0 + lambda sum_t w_t m_t tau_t / density, m_t ~ Bernoulli(density).

    Language models are super Mario: absorbing abilities from homologous models as a free lunch, arXiv:2311.03099.

    Args:
        density: the share of entries to keep, 1 - p of the paper.
        scaling: lambda of the task arithmetic that follows.
        rescale: `density` (the paper's), `norm` (keep each tensor's L1 norm) or `none`.
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        density: Setting = 0.5,
        scaling: Setting = 0.3,
        rescale: str = "density",
        weights: Weights = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Drop(density, rescale), Sum(weights), Scale(scaling)], tensors=tensors)


class DareTies(PipelineMethod):
    """DARE's dropped and rescaled task vectors, merged by TIES' sign election (arXiv:2311.03099, arXiv:2306.01708).

    Args:
        density: the share of entries to keep, 1 - p of the paper.
        scaling: lambda.
        rescale: `density` (the paper's), `norm` (keep each tensor's L1 norm) or `none`.
        combine: `mean` (TIES' own), `sum` or `max` of the entries that agree.
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        density: Setting = 0.5,
        scaling: Setting = 1.0,
        rescale: str = "density",
        combine: str = "mean",
        weights: Weights = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Drop(density, rescale), Elect(combine, weights), Scale(scaling)], tensors=tensors)
