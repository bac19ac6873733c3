"""Steps that combine on the sphere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

import torch
from torch import Tensor

from fusion_eval.errors import Fault
from fusion_eval.merge import steps_sphere as rules
from fusion_eval.merge.group import working
from fusion_eval.merge.setting import Range, Setting
from fusion_eval.merge.steps_combine import weighted_sum
from fusion_eval.method.step.base import COMBINE, ROWS, SCANNED, WHOLE, State, Step, View, Weights
from fusion_eval.method.step.combine import zero_sum_faults


@dataclass(frozen=True, slots=True)
class Slerp(Step):
    """Spherical interpolation of two experts, or of the base and one expert (Shoemake, 1985).

    Args:
        t: 0 is the first model, 1 the second.
    """

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = SCANNED
    settings: ClassVar[Mapping[str, Range]] = {"t": Range(0, 1)}

    t: Setting = 0.5

    def scan(self, view: View) -> Step:
        """The two coefficients of a tensor."""
        t = next(view.states()).value(self.t)
        return Combination(tuple(rules.slerp_coefficients(gram(view, operands), t)))


@dataclass(frozen=True, slots=True)
class NuSlerp(Step):
    """Spherical interpolation of two experts by their weights.

    Args:
        weights: t = w_2 / (w_1 + w_2), 1/2 where they sum to 0.
    """

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = SCANNED
    per_expert: ClassVar[tuple[str, ...]] = ("weights",)

    weights: Weights = None

    def scan(self, view: View) -> Step:
        """The two coefficients of a tensor."""
        t = second_share(next(view.states()).weights(self.weights))
        return Combination(tuple(rules.slerp_coefficients(gram(view), t, parallel=1.0)))


@dataclass(frozen=True, slots=True)
class NuSlerpRows(Step):
    """Spherical interpolation by weights with an angle for every row (vector of the last dimension) or column.

    Args:
        weights: t = w_2 / (w_1 + w_2), 1/2 where they sum to 0.
        per: `row` or `column`.
    """

    phase: ClassVar[str] = COMBINE
    per_expert: ClassVar[tuple[str, ...]] = ("weights",)
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"per": ("row", "column")}

    weights: Weights = None
    per: str = "row"

    @property
    def reach(self) -> int:  # type: ignore[override]
        """Columns run through the whole tensor."""
        return WHOLE if self.per == "column" else ROWS

    def __call__(self, state: State) -> State:
        t = second_share(state.weights(self.weights))
        first, second = (delta.reshape(delta.shape or (1,)) for delta in state.deltas)
        merged = rules.row_slerp(first, second, t, dim=-1 if self.per == "row" else 0)
        return state.with_merged(merged.reshape(state.deltas[0].shape))


def second_share(weights: Sequence[float]) -> float:
    """How far to go from the first to the second of two weighted models."""
    total = weights[0] + weights[1]
    return 0.5 if abs(total) < 1e-6 else weights[1] / total


@dataclass(frozen=True, slots=True)
class MultiSlerp(Step):
    """The weighted mean of any number of tensors in the tangent space at their mean direction.

    Args:
        weights: one per expert.
        normalize: divide the weights by their sum.
        eps: added to norms.
    """

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = SCANNED
    per_expert: ClassVar[tuple[str, ...]] = ("weights",)
    settings: ClassVar[Mapping[str, Range]] = {"eps": Range(0, 1)}

    weights: Weights = None
    normalize: bool = True
    eps: float = 1e-8

    def scan(self, view: View) -> Step:
        """The coefficients of a tensor."""
        weights = next(view.states()).weights(self.weights)
        if self.normalize:
            weights = [weight / sum(weights) for weight in weights]
        return Combination(tuple(rules.multislerp_coefficients(gram(view), weights, self.eps)))

    def faults(self, where: str) -> list[Fault]:
        """Weights that cannot be normalised are faults too."""
        return Step.faults(self, where) or zero_sum_faults(where, self.weights, self.normalize)


@dataclass(frozen=True, slots=True)
class Karcher(Step):
    """The Riemannian mean of the tensors' directions, times their mean norm.

    Args:
        max_iter: iterations at most.
        tol: the length of a step at which to stop.
    """

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = SCANNED
    settings: ClassVar[Mapping[str, Range]] = {"max_iter": Range(1), "tol": Range(0, 1, above=True)}

    max_iter: int = 10
    tol: float = 1e-5

    def scan(self, view: View) -> Step:
        """The coefficients of a tensor."""
        return Combination(tuple(rules.karcher_coefficients(gram(view), int(self.max_iter), self.tol)))


@dataclass(frozen=True, slots=True)
class Stock(Step):
    """The average of the task vectors, shrunk by their mean cosine in each tensor (Model Stock, arXiv:2403.19522)."""

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = SCANNED

    def scan(self, view: View) -> Step:
        """The coefficients of a tensor."""
        G = rules.summed(rules.rough_gram(state.deltas) for state in view.states())
        return Combination((float(rules.stock_ratio(G)) / len(G),) * len(G))


@dataclass(frozen=True, slots=True)
class StockRows(Step):
    """Model Stock with one cosine per row of a matrix, for each filter; a vector is one row."""

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = ROWS

    def __call__(self, state: State) -> State:
        stack = torch.stack(state.deltas)
        rows = stack.reshape(len(stack), stack.shape[1] if stack.dim() > 2 else 1, -1)
        wide = rows.double().transpose(0, 1)
        ratios = rules.stock_ratio(wide @ wide.mT).to(stack.dtype)
        return state.with_merged((rows.mean(0) * ratios.unsqueeze(-1)).reshape(stack.shape[1:]))


@dataclass(frozen=True, slots=True)
class Combination(Step):
    """A linear combination with known coefficients, of the experts or of the base and the one expert."""

    phase: ClassVar[str] = COMBINE

    coefficients: tuple[float, ...]

    def __call__(self, state: State) -> State:
        vectors = operands(state) if len(state.deltas) < len(self.coefficients) else state.deltas
        return state.with_merged(weighted_sum(vectors, self.coefficients))


def operands(state: State) -> Sequence[Tensor]:
    """The experts, or the base and the expert where there is one."""
    if len(state.deltas) > 1 or state.group.base is None or state.origin is not None:
        return state.deltas
    return (working(state.group.base), *state.deltas)


def gram(view: View, vectors: Callable[[State], Sequence[Tensor]] = attrgetter("deltas")) -> Tensor:
    """The inner products of a tensor's task vectors, or of other vectors."""
    G = rules.gram_of_parts(rules.summed(rules.gram_parts(vectors(state)) for state in view.states()))
    return rules.summed(rules.gram(vectors(state)) for state in view.states()) if G is None else G
