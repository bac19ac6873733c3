"""Steps that combine on the sphere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fusion_eval.merge import steps_sphere as rules
from fusion_eval.merge.group import working
from fusion_eval.merge.setting import Range, Setting
from fusion_eval.method.step.base import COMBINE, State, Step

_UNIT = Range(0, 1)


@dataclass(frozen=True, slots=True)
class Slerp(Step):
    """Spherical interpolation of two experts, or of the base and one expert (Shoemake, 1985).

    Args:
        t: 0 is the first model, 1 the second.
    """

    phase: ClassVar[str] = COMBINE
    settings: ClassVar[Mapping[str, Range]] = {"t": _UNIT}

    t: Setting = 0.5

    def __call__(self, state: State) -> State:
        models = state.deltas
        if len(models) == 1:
            assert state.group.base is not None, "slerp of one expert needs a base"
            models = (working(state.group.base), *models)
        return state.with_merged(rules.slerp(models[0], models[1], state.value(self.t)))
