"""nearswap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import NearSwap as NearSwapStep


class NearSwap(PipelineMethod):
    """theta = w theta_1 + (1 - w) theta_0, w = clamp(t / |theta_1 - theta_0|, 0, 1) per entry. No paper (mergekit).

    Args:
        t: the distance up to which a weight is swapped altogether.
        tensors: which tensors are merged and what the others become.
    """

    max_experts: ClassVar[int | None] = 1

    def __init__(
        self,
        t: Setting = 0.001,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([NearSwapStep(t)], tensors=tensors)
