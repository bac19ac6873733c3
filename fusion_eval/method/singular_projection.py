"""Task vectors within the base's singular directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import ProjectOnOrigin, Scale, Sum


class SingularProjection(PipelineMethod):
    """theta_0 + lambda sum_t U U^T tau_t V^T V, U and V the first singular directions of theta_0, or the others.

    From the analysis of SMILE, arXiv:2408.10174, of where in the base's spectrum a task's knowledge lies.

    Args:
        rank: how many directions come first; None: as many as hold half of the singular values' sum.
        part: `low` for the first directions, `high` for the others.
        scaling: lambda.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        rank: int | None = 128,
        part: str = "low",
        scaling: Setting = 1.0,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([ProjectOnOrigin(rank, part), Sum(), Scale(scaling)], tensors=tensors)
