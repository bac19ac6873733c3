"""Steps on the combined vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fusion_eval.merge.setting import Range, Setting
from fusion_eval.method.step.base import MERGED, State, Step


@dataclass(frozen=True, slots=True)
class Scale(Step):
    """Multiply by `scaling`, the lambda of most papers."""

    phase: ClassVar[str] = MERGED
    elementwise: ClassVar[bool] = True
    settings: ClassVar[Mapping[str, Range]] = {"scaling": Range()}

    scaling: Setting = 1.0

    def __call__(self, state: State) -> State:
        factor = state.value(self.scaling)
        return state if factor == 1 else state.with_merged(state.required() * factor)
