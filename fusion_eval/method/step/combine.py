"""Steps that make one vector of the experts', entry by entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fusion_eval.errors import Fault
from fusion_eval.merge import steps_combine as rules
from fusion_eval.method.step.base import COMBINE, State, Step, Weights


@dataclass(frozen=True, slots=True)
class Sum(Step):
    """The weighted sum, or the weighted mean when `normalize` (arXiv:2212.04089, arXiv:2203.05482)."""

    phase: ClassVar[str] = COMBINE
    elementwise: ClassVar[bool] = True
    per_expert: ClassVar[tuple[str, ...]] = ("weights",)

    weights: Weights = None
    normalize: bool = False

    def __call__(self, state: State) -> State:
        return state.with_merged(
            rules.weighted_sum(state.deltas, state.weights(self.weights), normalize=self.normalize)
        )

    def faults(self, where: str) -> list[Fault]:
        """Weights that cannot be normalised are faults too."""
        return Step.faults(self, where) or zero_sum_faults(where, self.weights, self.normalize)


@dataclass(frozen=True, slots=True)
class Elect(Step):
    """Elect a sign per entry and merge what agrees with it (TIES-Merging, arXiv:2306.01708).

    Args:
        combine: `mean` (as in the paper), `sum` or `max` of the agreeing entries.
        weights: votes and values are multiplied by them.
    """

    phase: ClassVar[str] = COMBINE
    elementwise: ClassVar[bool] = True
    per_expert: ClassVar[tuple[str, ...]] = ("weights",)
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"combine": ("mean", "sum", "max")}

    combine: str = "mean"
    weights: Weights = None

    def __call__(self, state: State) -> State:
        return state.with_merged(rules.disjoint_merge(state.deltas, state.weights(self.weights), self.combine))


def zero_sum_faults(where: str, weights: Weights, normalize: bool) -> list[Fault]:
    """The fault of plain weights that sum to zero and are to be normalised."""
    plain = isinstance(weights, list | tuple) and all(isinstance(weight, int | float) for weight in weights)
    if normalize and plain and abs(sum(weights)) < 1e-8:  # type: ignore[arg-type]
        return [Fault(f"{where}.weights", "sum to 0", "a sum other than 0", "Or set normalize=false.")]
    return []
