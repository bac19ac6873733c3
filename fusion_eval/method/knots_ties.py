"""KnOTS with TIES."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Align, Elect, Scale, Trim, Weights


class KnotsTies(PipelineMethod):
    """TIES (arXiv:2306.01708) in a common basis. KnOTS: model merging with SVD to tie the knots, arXiv:2410.19735.

    [tau_1 ... tau_N] = U diag(S) [V_1 ... V_N]; merge the diag(S) V_t by TIES to M; theta_0 + lambda U M.

    Args:
        density: the share of entries to keep.
        scaling: lambda.
        combine: `mean` (TIES' own), `sum` or `max` of the entries that agree.
        scope: rank magnitudes within each `tensor` or over the whole `model` (every decomposition is made twice then).
        weights: one per expert in the pool's order, or by expert name; None: 1 each.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        density: Setting = 0.2,
        scaling: Setting = 1.0,
        combine: str = "mean",
        scope: str = "tensor",
        weights: Weights = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Align(), Trim(density, scope), Elect(combine, weights), Scale(scaling)], tensors=tensors)
