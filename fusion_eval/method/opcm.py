"""OPCM: sequential merging by orthogonal projection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import MatchNorm, ProjectInTurn, Sum


class Opcm(PipelineMethod):
    """Experts merged in turn, each outside of what is merged already. Merging models on the fly without retraining.

    arXiv:2501.09522. D_1 = tau_1; D_t = D_(t-1) + P(tau_t), P drops what tau_t has in the leading directions of
    D_(t-1); the result is theta_0 + D_N scaled to the mean norm of the tau_t (the paper's scale after each step cancels
    but for the last).

    Args:
        alpha: the cumulated share of singular values that the protected directions hold.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        alpha: Setting = 0.5,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([ProjectInTurn(alpha), Sum(), MatchNorm()], tensors=tensors)
