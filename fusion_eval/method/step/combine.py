"""Steps that make one vector of the experts', entry by entry."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fusion_eval.errors import Fault
from fusion_eval.merge import steps_combine as rules
from fusion_eval.merge.group import working
from fusion_eval.merge.layers import layer_of
from fusion_eval.merge.setting import Range, Setting
from fusion_eval.method.step.base import COMBINE, ROWS, SCANNED, State, Step, View, Weights, largest
from fusion_eval.method.step.sparsify import DENSITY, SCOPES


@dataclass(frozen=True, slots=True)
class Sum(Step):
    """The weighted sum, or the weighted mean when `normalize` (arXiv:2212.04089, arXiv:2203.05482)."""

    phase: ClassVar[str] = COMBINE
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
    per_expert: ClassVar[tuple[str, ...]] = ("weights",)
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"combine": ("mean", "sum", "max")}

    combine: str = "mean"
    weights: Weights = None

    def __call__(self, state: State) -> State:
        return state.with_merged(rules.disjoint_merge(state.deltas, state.weights(self.weights), self.combine))


@dataclass(frozen=True, slots=True)
class MaxMagnitude(Step):
    """Per entry the task vector of largest magnitude (MagMax, arXiv:2407.06322)."""

    phase: ClassVar[str] = COMBINE

    def __call__(self, state: State) -> State:
        return state.with_merged(rules.largest_magnitude(state.deltas))


@dataclass(frozen=True, slots=True)
class Stitch(Step):
    """Per entry the mean of the task vectors that are not 0 there (Localize-and-Stitch, arXiv:2408.13656)."""

    phase: ClassVar[str] = COMBINE

    def __call__(self, state: State) -> State:
        return state.with_merged(rules.kept_mean(state.deltas))


@dataclass(frozen=True, slots=True)
class Unify(Step):
    """The elected sign times the largest magnitude of that sign (EMR-Merging, arXiv:2405.17461)."""

    phase: ClassVar[str] = COMBINE

    def __call__(self, state: State) -> State:
        return state.with_merged(rules.unified(state.deltas))


@dataclass(frozen=True, slots=True)
class EraseMinority(Step):
    """Weights by mean square, entries of the minority's sign erased (SCE, arXiv:2408.07990)."""

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = SCANNED

    squares: tuple[float, ...] = ()

    def scan(self, view: View) -> Step:
        """The weights of a tensor; equal where the task vectors vanish."""
        totals: list[float] = []
        for state in view.states():
            sums = [float(delta.square().sum(dtype=torch.float64)) for delta in state.deltas]
            totals = [total + part for total, part in zip(totals, sums, strict=True)] if totals else sums
        whole = sum(totals)
        return AgreeingMean(tuple(total / whole for total in totals) if whole > 0 else (1.0,) * len(totals))


@dataclass(frozen=True, slots=True)
class AgreeingMean(Step):
    """The weighted mean of the entries that have the sign of the sum."""

    phase: ClassVar[str] = COMBINE

    weights: tuple[float, ...]

    def __call__(self, state: State) -> State:
        return state.with_merged(rules.agreeing_mean(state.deltas, self.weights))


@dataclass(frozen=True, slots=True)
class Ram(Step):
    """Average what several experts change, keep what one changes (RAM and RAM+, arXiv:2601.13572).

    Args:
        r: RAM+ multiplies the unique part of expert t by 1 + r clamp(rho_t, 0, alpha), rho_t = shared / unique
            entries of the tensor; 0 is RAM.
        alpha: the bound of rho_t.
        epsilon: changes up to this size do not count.
    """

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = SCANNED
    settings: ClassVar[Mapping[str, Range]] = {"r": Range(0), "alpha": Range(0), "epsilon": Range(0)}

    r: Setting = 0.0
    alpha: Setting = 0.2
    epsilon: Setting = 1e-5
    gains: tuple[float, ...] = ()

    def scan(self, view: View) -> Step:
        """The gains of a tensor's experts."""
        first = next(view.states())
        r, alpha, epsilon = (first.value(setting) for setting in (self.r, self.alpha, self.epsilon))
        if r == 0:
            return UniqueAndShared(epsilon, (1.0,) * len(first.deltas))
        shared, unique = [0] * len(first.deltas), [0] * len(first.deltas)
        for state in view.states():
            on = torch.stack([rules.active(delta, epsilon) for delta in state.deltas])
            count = on.sum(0)
            for index, mask in enumerate(on):
                shared[index] += int((mask & (count > 1)).sum())
                unique[index] += int((mask & (count == 1)).sum())
        ratios = [s / max(u, epsilon) if s else 0.0 for s, u in zip(shared, unique, strict=True)]
        return UniqueAndShared(epsilon, tuple(1 + r * min(ratio, alpha) for ratio in ratios))


@dataclass(frozen=True, slots=True)
class UniqueAndShared(Step):
    """Unique changes times a gain, shared ones averaged."""

    phase: ClassVar[str] = COMBINE

    epsilon: float
    gains: tuple[float, ...]

    def __call__(self, state: State) -> State:
        return state.with_merged(rules.unique_and_shared(state.deltas, self.epsilon, self.gains))


@dataclass(frozen=True, slots=True)
class NearSwap(Step):
    """Move to the expert where it is near the base (nearswap, no paper).

    Args:
        t: the distance up to which a weight is swapped altogether.
    """

    phase: ClassVar[str] = COMBINE
    settings: ClassVar[Mapping[str, Range]] = {"t": Range(0)}

    t: Setting = 0.001

    def __call__(self, state: State) -> State:
        return state.with_merged(rules.limited(state.deltas[0], state.value(self.t)))


@dataclass(frozen=True, slots=True)
class FuseImportant(Step):
    """Take the expert's weight where |delta| KL(expert || base) is an outlier (Arcee Fusion, no paper)."""

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = ROWS

    def scan(self, view: View) -> Step:
        """The importance from which a tensor's entries are taken: median + 1.5 interquartile ranges, exact."""
        size = view.numel
        ranks = [size - int(share * (size - 1)) for share in (0.25, 0.5, 0.75)]
        low, median, high = largest(view, lambda state: [_importance(state)], [ranks])[0]
        return TakeImportant(median + 1.5 * (high - low))


@dataclass(frozen=True, slots=True)
class TakeImportant(Step):
    """Take the expert's weight from a known importance on."""

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = ROWS

    threshold: float

    def __call__(self, state: State) -> State:
        return state.with_merged(state.deltas[0] * (_importance(state) >= self.threshold))


def _importance(state: State) -> Tensor:
    base, other = state.group.required_base(), working(state.group.experts[0])
    return rules.importance(base, other) if base.dim() else (other - base).abs()


@dataclass(frozen=True, slots=True)
class Balance(Step):
    """Weigh entries by their part in a task and their agreement with the others (PCB-Merging, arXiv:2410.02396).

    Args:
        density: the share of highest scores that count, the paper's r.
        clip: the share of smallest and of largest magnitudes that are clipped.
        scope: rank over the whole `model` (the paper's) or within each `tensor`.
    """

    phase: ClassVar[str] = COMBINE
    reach: ClassVar[int] = SCANNED
    settings: ClassVar[Mapping[str, Range]] = {"density": DENSITY, "clip": Range(0, 0.5, below=True)}
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"scope": SCOPES}

    density: float = 0.1
    clip: float = 1e-4
    scope: str = "model"

    def bind(self, view: View) -> Step:
        """The bounds over the whole model."""
        return self if self.scope == "tensor" else self.scan(view)

    def scan(self, view: View) -> Step:
        """The bounds of magnitudes and of scores, each found by exact selection."""
        first = next(view.states(), None)
        if first is None:
            return self
        count, size = len(first.deltas), view.numel
        high, low = size - max(0, int(size * (1 - self.clip) - 1)), size - int(size * self.clip)
        magnitudes = largest(view, lambda state: state.deltas, [[low, high]] * count, magnitudes=True)
        step = Balanced(tuple((low, high) for low, high in magnitudes), ())
        rank = size - min(int(size * (1 - self.density)), size - 1)
        scores = largest(view, step.scores, [[rank, 1]] * count)
        return replace(step, cuts=tuple((low, high) for low, high in scores))


@dataclass(frozen=True, slots=True)
class Balanced(Step):
    """PCB-Merging with known bounds of magnitudes and scores, one pair of each per expert."""

    phase: ClassVar[str] = COMBINE

    bounds: tuple[tuple[float, float], ...]
    cuts: tuple[tuple[float, float], ...]

    def scores(self, state: State) -> list[Tensor]:
        """Each expert's score of each entry."""
        total = sum(state.deltas[1:], state.deltas[0])
        count = len(state.deltas)
        return [rules.balance(d, total, b, count) for d, b in zip(state.deltas, self.bounds, strict=True)]

    def __call__(self, state: State) -> State:
        kept = [rules.normalized(s, cut) for s, cut in zip(self.scores(state), self.cuts, strict=True)]
        clipped = [d.sign() * d.abs().clamp(*b) for d, b in zip(state.deltas, self.bounds, strict=True)]
        return state.with_merged(rules.not_lost(rules.balanced_mean(clipped, kept), state.deltas))


@dataclass(frozen=True, slots=True)
class Recombine(Step):
    """Each layer from an expert drawn at random (model recombination, FedMR, arXiv:2305.10730).

    Args:
        model: which of the N recombined models; together they use every expert's every layer once.
    """

    phase: ClassVar[str] = COMBINE
    settings: ClassVar[Mapping[str, Range]] = {"model": Range(0)}

    model: int = 0

    def __call__(self, state: State) -> State:
        layer = layer_of(state.group.name)
        key = state.group.name.rsplit(".", 1)[0] if layer is None else f"{layer[0]}.{layer[1]}"
        seed = zlib.crc32(f"{state.group.seed}/{key}".encode())
        order = torch.randperm(len(state.deltas), generator=torch.Generator().manual_seed(seed))
        return state.with_merged(state.deltas[int(order[self.model % len(order)])])


def zero_sum_faults(where: str, weights: Weights, normalize: bool) -> list[Fault]:
    """The fault of plain weights that sum to zero and are to be normalised."""
    plain = isinstance(weights, list | tuple) and all(isinstance(weight, int | float) for weight in weights)
    if normalize and plain and abs(sum(weights)) < 1e-8:  # type: ignore[arg-type]
        return [Fault(f"{where}.weights", "sum to 0", "a sum other than 0", "Or set normalize=false.")]
    return []
