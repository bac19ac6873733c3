"""Magnitude pruning of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Prune, Sum


class WeightPruning(PipelineMethod):
    """top_k(theta_1) in each row of every matrix; other tensors stay whole.

    Learning both weights and connections, arXiv:1506.02626, without training; [n, m] of each row's neighbours:
    arXiv:2104.08378.

    Args:
        density: the share of each row to keep.
        groups: [n, m] keeps n of every m neighbours in a row instead; None: no groups.
        tensors: which tensors are pruned and what the others become.
    """

    needs_base: ClassVar[bool] = False
    max_experts: ClassVar[int | None] = 1

    def __init__(
        self,
        density: Setting = 0.5,
        groups: Sequence[int] | None = None,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Prune(density, groups), Sum()], tensors=tensors, origin="none")
