"""Spherical linear interpolation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fusion_eval.errors import Fault
from fusion_eval.merge.setting import Setting
from fusion_eval.method.base_method import Pool
from fusion_eval.method.pipeline import PipelineMethod
from fusion_eval.method.step import Slerp as SlerpStep


class Slerp(PipelineMethod):
    """[sin((1-t) w) a + sin(t w) b] / sin w, tensor by tensor, w the angle between a and b.

    Shoemake, Animating rotation with quaternion curves, SIGGRAPH 1985. With two experts, a and b are they; with one
    expert, a is the base.

    Args:
        t: 0 is the first model, 1 the second.
        tensors: which tensors are merged and what the others become.
    """

    needs_base: ClassVar[bool] = False
    max_experts: ClassVar[int | None] = 2

    def __init__(self, t: Setting = 0.5, tensors: Mapping[str, Any] | None = None) -> None:
        super().__init__([SlerpStep(t)], tensors=tensors, origin="none")

    def faults(self, pool: Pool) -> list[Fault]:
        """One expert needs a base to go with it."""
        found = super().faults(pool)
        if len(pool.expert_names) == 1 and pool.base_name is None:
            found.append(Fault("modelpool.experts", "1 expert and no base", "two experts, or a base and an expert"))
        return found
