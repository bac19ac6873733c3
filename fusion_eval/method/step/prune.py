"""A step that prunes weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fusion_eval.errors import Fault
from fusion_eval.merge import steps_sparsify as rules
from fusion_eval.merge.setting import Range, Setting
from fusion_eval.method.step.base import DELTAS, ROWS, State, Step
from fusion_eval.method.step.sparsify import DENSITY


@dataclass(frozen=True, slots=True)
class Prune(Step):
    """Keep the largest magnitudes of each row of a matrix (an output's weights); tables and vectors stay whole.

    Args:
        density: the share of each row to keep.
        groups: [n, m] keeps n of every m neighbours in a row instead (N:M sparsity, arXiv:2104.08378).
    """

    phase: ClassVar[str] = DELTAS
    reach: ClassVar[int] = ROWS
    settings: ClassVar[Mapping[str, Range]] = {"density": DENSITY}

    density: Setting = 0.5
    groups: Sequence[int] | None = None

    def __call__(self, state: State) -> State:
        if not state.matrix or state.deltas[0].dim() < 2 or not state.deltas[0].numel():
            return state
        if self.groups is not None:
            return state.with_deltas([rules.trim_groups(delta, *self.groups) for delta in state.deltas])
        densities = [state.value(self.density, index) for index in range(len(state.deltas))]
        return state.with_deltas([rules.trim_rows(d, share) for d, share in zip(state.deltas, densities, strict=True)])

    def faults(self, where: str) -> list[Fault]:
        """Groups must be two numbers, the first no more than the second."""
        found = Step.faults(self, where)
        if self.groups is not None:
            plain = len(self.groups) == 2 and all(type(number) is int for number in self.groups)
            if not plain or not 1 <= self.groups[0] <= self.groups[1]:
                found.append(Fault(f"{where}.groups", f"{list(self.groups)}", "[n, m] with 1 <= n <= m", "Say [2, 4]."))
        return found
