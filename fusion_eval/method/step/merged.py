"""Steps on the combined vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fusion_eval.merge import steps_combine as rules
from fusion_eval.merge.setting import Range, Setting
from fusion_eval.method.step.base import MERGED, State, Step, View


@dataclass(frozen=True, slots=True)
class Scale(Step):
    """Multiply by `scaling`, the lambda of most papers."""

    phase: ClassVar[str] = MERGED
    settings: ClassVar[Mapping[str, Range]] = {"scaling": Range()}

    scaling: Setting = 1.0

    def __call__(self, state: State) -> State:
        factor = state.value(self.scaling)
        return state if factor == 1 else state.with_merged(state.required() * factor)


@dataclass(frozen=True, slots=True)
class Extrapolate(Step):
    """Multiply by 1 + alpha: go on beyond the average, away from the base (ExPO, arXiv:2404.16792)."""

    phase: ClassVar[str] = MERGED
    settings: ClassVar[Mapping[str, Range]] = {"alpha": Range()}

    alpha: Setting = 0.1

    def __call__(self, state: State) -> State:
        return state.with_merged(state.required() * (1 + state.value(self.alpha)))


@dataclass(frozen=True, slots=True)
class DepthScale(Step):
    """Multiply by alpha + beta (l - 1) / (L - 1) in layer l of L (LiNeS, arXiv:2410.17146).

    Args:
        alpha: the factor of the first layer; None: |sum_t tau_t|_1 / (N |tau|_1) over the whole model.
        beta: how much larger the last layer's is.
    """

    phase: ClassVar[str] = MERGED

    alpha: float | None = None
    beta: float = 0.5

    @property
    def settings(self) -> Mapping[str, Range]:  # type: ignore[override]
        """A factor that is None is found later."""
        return {"beta": Range()} if self.alpha is None else {"alpha": Range(), "beta": Range()}

    def uses_depth(self) -> bool:
        """It is what the step is about."""
        return self.beta != 0

    def bind(self, view: View) -> Step:
        """The first layer's factor."""
        if self.alpha is not None:
            return self
        summed = merged = 0.0
        count = 1
        for state in view.states():
            deltas = state.task_vectors()
            count = len(deltas)
            summed += _length(sum(deltas[1:], deltas[0]))
            merged += _length(state.required())
        return replace(self, alpha=summed / merged / count if merged > 0 else 1 / count)

    def __call__(self, state: State) -> State:
        alpha = 1 / len(state.deltas) if self.alpha is None else self.alpha
        return state.with_merged(state.required() * (alpha + self.beta * state.position))


@dataclass(frozen=True, slots=True)
class Consensus(Step):
    """Keep the entries that matter to several experts (Consensus Merging, arXiv:2405.07813).

    Args:
        mask_threshold: lambda of the masks |tau_t| > lambda |tau - tau_t|.
        agree: how many experts' masks must be on.
    """

    phase: ClassVar[str] = MERGED
    settings: ClassVar[Mapping[str, Range]] = {"mask_threshold": Range(0), "agree": Range(0)}

    mask_threshold: Setting = 0.6
    agree: Setting = 2

    def __call__(self, state: State) -> State:
        merged = state.required()
        threshold, least = state.value(self.mask_threshold), state.value(self.agree)
        return state.with_merged(merged * rules.consensus(state.task_vectors(), merged, threshold, least))


@dataclass(frozen=True, slots=True)
class MatchNorm(Step):
    """Scale the whole merged vector to the mean norm of the task vectors (OPCM's calibration, arXiv:2501.09522)."""

    phase: ClassVar[str] = MERGED

    factor: float = 1.0

    def bind(self, view: View) -> Step:
        """The factor, from the norms over the whole model."""
        merged = 0.0
        norms: list[float] = []
        for state in view.states():
            squares = [_square(delta) for delta in state.task_vectors()]
            norms = [total + part for total, part in zip(norms, squares, strict=True)] if norms else squares
            merged += _square(state.required())
        mean = sum(math.sqrt(norm) for norm in norms) / max(1, len(norms))
        return replace(self, factor=mean / math.sqrt(merged) if merged > 0 else 1.0)

    def __call__(self, state: State) -> State:
        return state.with_merged(state.required() * self.factor)


def _square(tensor: Tensor) -> float:
    return float(tensor.square().sum(dtype=torch.float64))


def _length(tensor: Tensor) -> float:
    return float(tensor.abs().sum(dtype=torch.float64))
