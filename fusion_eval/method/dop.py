"""DOP: sequential merging between two projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import MergeInTurn


class Dop(PipelineMethod):
    """Experts merged in turn, each result close to both sides in the directions that they use.

    Continual model merging without data: dual projections for balancing stability and plasticity (NeurIPS 2025). For
    each expert after the first, Adam on w_1 l_1 + w_2 l_2 from the average, l_i = |S_i U_i^T (W - W_i)|^2 + |(W - W_i)
    V_i^T S_i|^2, U_i S_i V_i = W_i - W_0 less its last directions.

    Args:
        alpha: the weight of what is merged already, at the start of a descent.
        steps: Adam's steps for each expert.
        lr: its learning rate.
        ema: how much of a weight stays at each step.
        energy: protected directions are those before the singular values' cumulated share reaches this.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        alpha: float = 0.8,
        steps: int = 200,
        lr: float = 1e-4,
        ema: float = 0.999,
        energy: float = 0.99999,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([MergeInTurn(alpha, steps, lr, ema, energy)], tensors=tensors)
