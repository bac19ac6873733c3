"""SCE: select, calculate, erase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import EraseMinority, Scale, SelectVariance


class Sce(PipelineMethod):
    """Select by variance, weigh by mean square, erase the minority's sign. FuseChat, arXiv:2408.07990, section 3.3.

    tau^_t = the entries of largest variance; w_t = mean tau^_t^2 normalised; theta_0 + lambda sum w_t m_t tau^_t / sum
    w_t m_t.

    Args:
        select_topk: the share of entries with a variance to keep.
        scaling: lambda.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        select_topk: Setting = 0.1,
        scaling: Setting = 1.0,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([SelectVariance(select_topk), EraseMinority(), Scale(scaling)], tensors=tensors)
