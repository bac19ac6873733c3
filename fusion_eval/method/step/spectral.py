"""Steps on matrices; tensors that are none (biases, norms, convolution kernels) are averaged, as in the papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fusion_eval.errors import Fault, MethodError
from fusion_eval.merge import steps_descent as descent
from fusion_eval.merge import steps_spectral as rules
from fusion_eval.merge.setting import Range, Setting
from fusion_eval.merge.steps_combine import weighted_sum
from fusion_eval.merge.steps_sphere import gram
from fusion_eval.method.step.base import COMBINE, DELTAS, MERGED, WHOLE, State, Step, View, Weights, thresholds
from fusion_eval.method.step.sparsify import DENSITY


def is_matrix(state: State) -> bool:
    """Whether the tensor is a matrix with entries, and no table."""
    return state.matrix and state.deltas[0].dim() == 2 and state.deltas[0].numel() > 0


def averaged(state: State) -> State:
    """What tensors that are no matrices become."""
    return state.with_merged(weighted_sum(state.deltas, [1.0] * len(state.deltas), normalize=True))


@dataclass(frozen=True, slots=True)
class TaskSingularVectors(Step):
    """TSV-M (arXiv:2412.00081).

    Args:
        rank: the share of directions each task keeps; None: 1/N.
        weights: task vectors are multiplied by them first.
    """

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = WHOLE
    per_expert: ClassVar[tuple[str, ...]] = ("weights",)

    weights: Weights = None
    rank: float | None = None

    @property
    def settings(self) -> Mapping[str, Range]:  # type: ignore[override]
        """The rank, where it is given."""
        return {} if self.rank is None else {"rank": DENSITY}

    def __call__(self, state: State) -> State:
        weights = state.weights(self.weights)
        scaled = [d if w == 1 else d * w for d, w in zip(state.deltas, weights, strict=True)]
        if not is_matrix(state):
            return averaged(state.with_deltas(scaled))
        return state.with_merged(rules.task_singular_vectors(scaled, self.rank))


@dataclass(frozen=True, slots=True)
class Isotropic(Step):
    """Iso-C (arXiv:2502.04959): the sum of the task vectors with all singular values equal."""

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = WHOLE

    def __call__(self, state: State) -> State:
        return state.with_merged(rules.isotropic(rules.total(state.deltas))) if is_matrix(state) else averaged(state)


@dataclass(frozen=True, slots=True)
class IsotropicWithTasks(Step):
    """Iso-CTS (arXiv:2502.04959).

    Args:
        common: the share of directions that are common to all tasks.
    """

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = WHOLE
    settings: ClassVar[Mapping[str, Range]] = {"common": Range(0, 1)}

    common: Setting = 0.8

    def __call__(self, state: State) -> State:
        if not is_matrix(state):
            return averaged(state)
        return state.with_merged(rules.isotropic_with_tasks(state.deltas, state.value(self.common)))


@dataclass(frozen=True, slots=True)
class Align(Step):
    """Move task vectors into a common basis; what is combined there is brought back (KnOTS, arXiv:2410.19735)."""

    phase: ClassVar[str] = DELTAS
    reach: ClassVar[int] = WHOLE

    def __call__(self, state: State) -> State:
        if not is_matrix(state):
            return state
        basis, parts = rules.aligned(state.deltas)
        return replace(state.with_deltas(parts), lift=lambda merged: basis @ merged.double())


@dataclass(frozen=True, slots=True)
class LowRank(Step):
    """The best low-rank approximation of each task vector (CART, arXiv:2412.12153).

    Args:
        rank: the share of the full rank to keep.
    """

    phase: ClassVar[str] = DELTAS
    reach: ClassVar[int] = WHOLE
    settings: ClassVar[Mapping[str, Range]] = {"rank": DENSITY}

    rank: Setting = 0.08

    def __call__(self, state: State) -> State:
        if not is_matrix(state):
            return state
        ranks = [rules.rank_of(d, state.value(self.rank, index)) for index, d in enumerate(state.deltas)]
        return state.with_deltas([rules.low_rank(d, rank) for d, rank in zip(state.deltas, ranks, strict=True)])


@dataclass(frozen=True, slots=True)
class ProjectOnOrigin(Step):
    """Task vectors within the singular directions of the weights they start from (from SMILE, arXiv:2408.10174).

    Args:
        rank: how many directions come first; None: as many as hold half of the singular values' sum.
        part: `low` for the first directions, `high` for the others.
    """

    phase: ClassVar[str] = DELTAS
    reach: ClassVar[int] = WHOLE
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"part": ("low", "high")}

    rank: int | None = None
    part: str = "low"

    @property
    def settings(self) -> Mapping[str, Range]:  # type: ignore[override]
        """The rank, where it is given."""
        return {} if self.rank is None else {"rank": Range(0)}

    def __call__(self, state: State) -> State:
        if not is_matrix(state):
            return state
        if state.origin is None:
            fault = Fault("method.origin", "none: task vectors that start from nothing", "base or average")
            raise MethodError(fault)
        origin, rank = state.origin, None if self.rank is None else int(self.rank)
        return state.with_deltas([rules.on_directions_of(origin, d, rank, self.part) for d in state.deltas])


@dataclass(frozen=True, slots=True)
class ProjectInTurn(Step):
    """Each expert's task vector less its part in the directions merged before it (OPCM, arXiv:2501.09522).

    Args:
        alpha: the cumulated share of singular values that the protected directions hold.
    """

    phase: ClassVar[str] = DELTAS
    reach: ClassVar[int] = WHOLE
    settings: ClassVar[Mapping[str, Range]] = {"alpha": Range(0, 1)}

    alpha: Setting = 0.5

    def __call__(self, state: State) -> State:
        if not is_matrix(state):
            return state
        alpha, merged = state.value(self.alpha), state.deltas[0]
        projected = [merged]
        for delta in state.deltas[1:]:
            projected.append(rules.outside_of(merged, delta, alpha))
            merged = merged + projected[-1]
        return state.with_deltas(projected)


@dataclass(frozen=True, slots=True)
class LeastInterference(Step):
    """WUDI-Merging (arXiv:2503.08099).

    Args:
        steps: Adam's steps.
        lr: its learning rate.
    """

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = WHOLE
    settings: ClassVar[Mapping[str, Range]] = {"steps": Range(0), "lr": Range(0)}

    steps: int = 400
    lr: float = 1e-5

    def __call__(self, state: State) -> State:
        if not is_matrix(state):
            return averaged(state)
        return state.with_merged(descent.least_interference(state.deltas, self.lr, self.steps))


@dataclass(frozen=True, slots=True)
class ModifiedTaskVectors(Step):
    """DOGE-TA (arXiv:2501.01230): task vectors changed to conflict less, cut to their largest entries, weighed by norm.

    Args:
        subspace: the shared subspace has 1/subspace of the rank.
        density: the share of a whole task vector's largest magnitudes that count.
        eta: a task vector's weight is eta / its norm, per tensor.
        steps: Adam's steps.
        lr: its learning rate.
    """

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = WHOLE
    settings: ClassVar[Mapping[str, Range]] = {
        "subspace": Range(1),
        "density": DENSITY,
        "eta": Range(0, above=True),
        "steps": Range(0),
        "lr": Range(0),
    }

    subspace: int = 6
    density: float = 0.3
    eta: float = 0.07
    steps: int = 400
    lr: float = 1e-4
    thresholds: tuple[float, ...] = ()

    def bind(self, view: View) -> Step:
        """The magnitudes from which a whole task vector's entries count."""
        first = next(view.states(), None)
        if first is None or self.thresholds:
            return self
        densities = [self.density] * len(first.deltas)
        return replace(self, thresholds=tuple(thresholds(view, densities)))

    def __call__(self, state: State) -> State:
        norms = [float(torch.linalg.vector_norm(delta)) for delta in state.deltas]
        scales = [self.eta / norm if norm > 0 else 0.0 for norm in norms]
        change: Tensor | float = 0.0
        if is_matrix(state) and any(scales):
            change = descent.conflict_removing(state.deltas, scales, int(self.subspace), self.lr, self.steps)
        thresholds = self.thresholds or (0.0,) * len(scales)
        kept = [(d + change) * (d.abs() >= t) for d, t in zip(state.deltas, thresholds, strict=True)]
        return state.with_merged(weighted_sum(kept, scales))


@dataclass(frozen=True, slots=True)
class Disentangle(Step):
    """Subtract from every task vector the part that makes them alike (AWD, arXiv:2411.18729).

    Args:
        alpha: how much the subtracted vector's norm counts.
        steps: Adam's steps.
        lr: its learning rate.
    """

    phase: ClassVar[str] = DELTAS
    settings: ClassVar[Mapping[str, Range]] = {"alpha": Range(0), "steps": Range(0), "lr": Range(0)}

    alpha: float = 0.1
    steps: int = 300
    lr: float = 0.01
    coefficients: tuple[float, ...] = ()

    def bind(self, view: View) -> Step:
        """The redundant vector, from the inner products over the whole model."""
        pieces = [gram(state.deltas) for state in view.states()]
        if not pieces:
            return self
        found = descent.disentangling(rules.total(pieces), self.alpha, int(self.steps), self.lr)
        return replace(self, coefficients=tuple(float(c) for c in found))

    def __call__(self, state: State) -> State:
        if not any(self.coefficients):
            return state
        redundant = weighted_sum(state.deltas, self.coefficients)
        return state.with_deltas([delta - redundant for delta in state.deltas])


@dataclass(frozen=True, slots=True)
class CalibrateSpectrum(Step):
    """Singular Value Calibration of any merge (arXiv:2602.05536).

    Args:
        alpha: the least response of a task to a direction that is taken into account.
    """

    phase: ClassVar[str] = MERGED
    reach: ClassVar[int] = WHOLE
    settings: ClassVar[Mapping[str, Range]] = {"alpha": Range(0, above=True)}

    alpha: Setting = 0.1

    def __call__(self, state: State) -> State:
        if not is_matrix(state):
            return state
        vectors: Sequence[Tensor] = state.task_vectors()
        return state.with_merged(rules.calibrated(state.required(), vectors, state.value(self.alpha)))


@dataclass(frozen=True, slots=True)
class MergeInTurn(Step):
    """Experts merged one after another, each time between the directions of both (DOP, NeurIPS 2025).

    Tensors that are no matrices are averaged half and half each time.

    Args:
        alpha: the weight of what is merged already, at the start of a descent.
        steps: Adam's steps for each expert.
        lr: its learning rate.
        ema: how much of a weight stays at each step.
        energy: protected directions are those before the singular values' cumulated share reaches this.
    """

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = WHOLE
    settings: ClassVar[Mapping[str, Range]] = {
        "alpha": Range(0, 1),
        "steps": Range(0),
        "lr": Range(0),
        "ema": Range(0, 1),
        "energy": DENSITY,
    }

    alpha: float = 0.8
    steps: int = 200
    lr: float = 1e-4
    ema: float = 0.999
    energy: float = 0.99999

    def __call__(self, state: State) -> State:
        options = descent.DualOptions(self.lr, int(self.steps), self.alpha, self.ema, self.energy)
        merged = state.deltas[0]
        for delta in state.deltas[1:]:
            merged = descent.between(merged, delta, options) if is_matrix(state) else (merged + delta) / 2
        return state.with_merged(merged)
