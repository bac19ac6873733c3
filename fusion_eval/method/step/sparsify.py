"""Steps that thin out task vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fusion_eval.merge import steps_sparsify as rules
from fusion_eval.merge.setting import Range, Setting
from fusion_eval.merge.steps_threshold import streamed_thresholds
from fusion_eval.method.step.base import DELTAS, State, Step, View

DENSITY = Range(0, 1, above=True)
_SCOPES = ("tensor", "model")


@dataclass(frozen=True, slots=True)
class Trim(Step):
    """Keep the entries of largest magnitude: TIES-Merging's first step (arXiv:2306.01708).

    Args:
        density: the share to keep; over a whole model it may differ by expert only.
        scope: `tensor` ranks within each tensor, `model` over the whole task vector, as in the paper.
        rescale: `none`, or `norm`: keep the L1 norm of each tensor.
    """

    phase: ClassVar[str] = DELTAS
    settings: ClassVar[Mapping[str, Range]] = {"density": DENSITY}
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"scope": _SCOPES, "rescale": ("none", "norm")}

    density: Setting = 0.2
    scope: str = "model"
    rescale: str = "none"

    def bind(self, view: View) -> Step:
        """The thresholds over the whole model, found exactly by passes over its tensors."""
        if self.scope == "tensor":
            return self
        first = next(iter(view.states()), None)
        if first is None:
            return self
        densities = [first.value(self.density, index) for index in range(len(first.deltas))]
        if all(density >= 1 for density in densities):
            return self
        thresholds = streamed_thresholds(lambda: (state.deltas for state in view.states()), densities)
        return Cut(tuple(thresholds)) if self.rescale == "none" else CutRescaled(tuple(thresholds))

    def __call__(self, state: State) -> State:
        kept = []
        for index, delta in enumerate(state.deltas):
            density = state.value(self.density, index)
            kept.append(delta if density >= 1 else self._trimmed(delta, density))
        return state.with_deltas(kept)

    def _trimmed(self, delta: Tensor, density: float) -> Tensor:
        sparse = rules.trim(delta, rules.magnitude_threshold(delta, density))
        return rules.rescale_norm(sparse, delta) if self.rescale == "norm" else sparse


@dataclass(frozen=True, slots=True)
class Cut(Step):
    """Keep the entries of at least a known magnitude, one per expert."""

    phase: ClassVar[str] = DELTAS
    elementwise: ClassVar[bool] = True

    thresholds: tuple[float, ...]

    def __call__(self, state: State) -> State:
        pairs = zip(state.deltas, self.thresholds, strict=True)
        return state.with_deltas([rules.trim(delta, threshold) for delta, threshold in pairs])


@dataclass(frozen=True, slots=True)
class CutRescaled(Step):
    """`Cut`, with the L1 norm of each tensor kept."""

    phase: ClassVar[str] = DELTAS

    thresholds: tuple[float, ...]

    def __call__(self, state: State) -> State:
        pairs = zip(state.deltas, self.thresholds, strict=True)
        return state.with_deltas([rules.rescale_norm(rules.trim(d, threshold), d) for d, threshold in pairs])


@dataclass(frozen=True, slots=True)
class Drop(Step):
    """Drop random entries and rescale the rest: DARE (arXiv:2311.03099).

    Args:
        density: the share to keep, 1 - p of the paper.
        rescale: `density` divides by it, as in the paper; `norm` keeps the L1 norm of each tensor; `none`.
    """

    phase: ClassVar[str] = DELTAS
    settings: ClassVar[Mapping[str, Range]] = {"density": DENSITY}
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"rescale": ("density", "norm", "none")}

    density: Setting = 0.5
    rescale: str = "density"

    def __call__(self, state: State) -> State:
        kept = []
        for index, delta in enumerate(state.deltas):
            density = state.value(self.density, index)
            if density >= 1:
                kept.append(delta)
                continue
            sparse, share = rules.drop(delta, density, state.group.generator(index))
            if self.rescale == "norm":
                sparse = rules.rescale_norm(sparse, delta)
            kept.append(sparse / share if self.rescale == "density" else sparse)
        return state.with_deltas(kept)
