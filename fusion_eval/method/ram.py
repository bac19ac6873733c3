"""RAM and RAM+."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusion_eval.merge.setting import Setting
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Ram as RamStep


class Ram(PipelineMethod):
    """theta_0 + sum_t (what expert t alone changes) + mean (what several change).

    Reinforced agent merging, arXiv:2601.13572.

    Args:
        epsilon: changes up to this size do not count.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        epsilon: Setting = 1e-5,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([RamStep(0.0, 0.2, epsilon)], tensors=tensors)


class RamPlus(PipelineMethod):
    """RAM with the unique part of expert t times 1 + r clamp(shared_t / unique_t, 0, alpha). RAM+, arXiv:2601.13572.

    Args:
        r: how much the ratio of shared to unique entries amplifies.
        alpha: the bound of that ratio.
        epsilon: changes up to this size do not count.
        tensors: which tensors are merged and what the others become.
    """

    def __init__(
        self,
        r: Setting = 0.1,
        alpha: Setting = 0.2,
        epsilon: Setting = 1e-5,
        tensors: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([RamStep(r, alpha, epsilon)], tensors=tensors)
