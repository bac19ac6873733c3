"""One model as it is, or scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Scale, Sum


class Passthrough(PipelineMethod):
    """theta = s theta_1. No paper.

    Args:
        scaling: s, which may differ by tensor and depth.
        tensors: which tensors are merged and what the others become.
    """

    needs_base: ClassVar[bool] = False
    max_experts: ClassVar[int | None] = 1

    def __init__(
        self,
        scaling: Setting = 1.0,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([Sum(), Scale(scaling)], tensors=tensors, origin="none")
