"""CART: low-rank task vectors around the average."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import LowRank, Scale, Sum


class Cart(PipelineMethod):
    """avg + lambda sum_t SVD_r(theta_t - avg). Revisiting weight averaging for model merging, arXiv:2412.12153, eq. 5.

    Args:
        scaling: lambda.
        rank: the share of the full rank to keep.
        tensors: which tensors are merged and what the others become.
    """

    needs_base: ClassVar[bool] = False

    def __init__(
        self,
        scaling: Setting = 1.0,
        rank: Setting = 0.08,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([LowRank(rank), Sum(), Scale(scaling)], tensors=tensors, origin="average")
