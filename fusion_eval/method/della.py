"""DELLA-Merging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import DropByRank, Elect, Scale, Sum, Weights


class Della(PipelineMethod):
    """Drop by rank, elect a sign, fuse.

    DELLA-Merging: reducing interference by magnitude-based sampling, arXiv:2406.11617. tau^_t = m_t tau_t / p_t, m_t ~
    Bernoulli(p_t), p_t growing with the rank of |tau_t| in its row; then TIES' election.

    Args:
        density: the share of entries to keep.
        epsilon: half the width of the range of probabilities: [density - epsilon, density + epsilon].
        scaling: lambda.
        rescale: `probability` divides each entry by its own (the paper's), `norm` keeps each tensor's L1 norm, or
            `none`.
        combine: `mean` (TIES' own), `sum` or `max` of the entries that agree.
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        density: Setting = 0.5,
        epsilon: Setting = 0.15,
        scaling: Setting = 1.0,
        rescale: str = "probability",
        combine: str = "mean",
        weights: Weights = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            [DropByRank(density, epsilon, rescale), Elect(combine, weights), Scale(scaling)], tensors=tensors
        )


class DellaLinear(PipelineMethod):
    """DELLA's dropping (arXiv:2406.11617) and the sum of task arithmetic: no election.

    Args:
        density: the share of entries to keep.
        epsilon: half the width of the range of probabilities: [density - epsilon, density + epsilon].
        scaling: lambda.
        rescale: `probability` divides each entry by its own (the paper's), `norm` keeps each tensor's L1 norm, or
            `none`.
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        density: Setting = 0.5,
        epsilon: Setting = 0.15,
        scaling: Setting = 0.3,
        rescale: str = "probability",
        weights: Weights = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([DropByRank(density, epsilon, rescale), Sum(weights), Scale(scaling)], tensors=tensors)
