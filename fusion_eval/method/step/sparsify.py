"""Steps that thin out task vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fusion_eval.errors import Fault
from fusion_eval.merge import steps_sparsify as rules
from fusion_eval.merge.setting import Range, Setting
from fusion_eval.method.step.base import DELTAS, ROWS, SCANNED, State, Step, View, largest, thresholds

DENSITY = Range(0, 1, above=True)
SCOPES = ("tensor", "model")
_TINY = 1e-7


@dataclass(frozen=True, slots=True)
class Trim(Step):
    """Keep the entries of largest magnitude: TIES-Merging's first step (arXiv:2306.01708).

    Args:
        density: the share to keep; over a whole model it may differ by expert only.
        scope: `tensor` ranks within each tensor, `row` within each output's weights, `model` over the whole task
            vector, as in the paper.
        rescale: `none`; `density` divides by it; `norm` keeps the L1 norm of each tensor.
    """

    phase: ClassVar[str] = DELTAS
    settings: ClassVar[Mapping[str, Range]] = {"density": DENSITY}
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "scope": (*SCOPES, "row"),
        "rescale": ("none", "density", "norm"),
    }

    density: Setting = 0.2
    scope: str = "model"
    rescale: str = "none"

    @property
    def reach(self) -> int:  # type: ignore[override]
        """Ranks within rows need whole ones."""
        return ROWS if self.scope == "row" else SCANNED

    def bind(self, view: View) -> Step:
        """The thresholds over the whole model, found exactly by passes over its tensors."""
        if self.scope != "model":
            return self
        cut = self._cut(view)
        return CutAndRescale(cut) if self.rescale == "norm" else cut

    def scan(self, view: View) -> Step:
        """The thresholds of a tensor."""
        cut = self._cut(view)
        return rescaled(cut, view) if self.rescale == "norm" else cut

    def _cut(self, view: View) -> Cut | CutRows:
        first = next(view.states(), None)
        if first is None:
            return Cut((), ())
        densities = [first.value(self.density, index) for index in range(len(first.deltas))]
        factors = [1 / density if self.rescale == "density" else 1.0 for density in densities]
        if self.scope == "row":
            return CutRows(tuple(densities), tuple(factors))
        return Cut(tuple(thresholds(view, densities)), tuple(factors))


@dataclass(frozen=True, slots=True)
class CutRows(Step):
    """Keep a share of each row's entries, those of largest magnitude, and multiply by a factor, one per expert."""

    phase: ClassVar[str] = DELTAS
    reach: ClassVar[int] = ROWS

    densities: tuple[float, ...]
    factors: tuple[float, ...]

    def __call__(self, state: State) -> State:
        kept = [rules.trim_rows(delta, d) for delta, d in zip(state.deltas, self.densities, strict=True)]
        return state.with_deltas(_multiplied(kept, self.factors))


@dataclass(frozen=True, slots=True)
class Cut(Step):
    """Keep the entries of at least a known magnitude and multiply by a factor, one of each per expert."""

    phase: ClassVar[str] = DELTAS

    thresholds: tuple[float, ...]
    factors: tuple[float, ...]

    def __call__(self, state: State) -> State:
        kept = [d if t <= 0 else rules.trim(d, t) for d, t in zip(state.deltas, self.thresholds, strict=True)]
        return state.with_deltas(_multiplied(kept, self.factors))


@dataclass(frozen=True, slots=True)
class CutAndRescale(Step):
    """A cut that keeps the L1 norm of each tensor."""

    phase: ClassVar[str] = DELTAS
    reach: ClassVar[int] = SCANNED

    cut: Cut | CutRows

    def scan(self, view: View) -> Step:
        """The cut with the factors of a tensor."""
        return rescaled(self.cut, view)


@dataclass(frozen=True, slots=True)
class Drop(Step):
    """Drop random entries and rescale the rest: DARE (arXiv:2311.03099).

    Args:
        density: the share to keep, 1 - p of the paper.
        rescale: `density` divides by it, as in the paper; `norm` keeps the L1 norm of each tensor; `none`.
    """

    phase: ClassVar[str] = DELTAS
    reach: ClassVar[int] = SCANNED
    settings: ClassVar[Mapping[str, Range]] = {"density": DENSITY}
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"rescale": ("density", "norm", "none")}

    density: Setting = 0.5
    rescale: str = "density"

    def scan(self, view: View) -> Step:
        """The step with this tensor's densities and factors."""
        first = next(view.states())
        densities = [first.value(self.density, index) for index in range(len(first.deltas))]
        dropping = Dropping(tuple(densities), (1.0,) * len(densities))
        if self.rescale == "density":
            return replace(dropping, factors=tuple(1 / rules.drawn_density(d) if d < 1 else 1.0 for d in densities))
        return rescaled(dropping, view) if self.rescale == "norm" else dropping


@dataclass(frozen=True, slots=True)
class Dropping(Step):
    """Keep random entries, drawn as slices come, and multiply by a factor, one per expert."""

    phase: ClassVar[str] = DELTAS

    densities: tuple[float, ...]
    factors: tuple[float, ...]
    bits: list[rules.RandomBits] = field(default_factory=list)

    def __call__(self, state: State) -> State:
        if state.group.start == 0:
            self.bits[:] = [rules.RandomBits(state.group.generator(index)) for index in range(len(state.deltas))]
        kept = [
            delta if density >= 1 else rules.drop(delta, density, bits)
            for delta, density, bits in zip(state.deltas, self.densities, self.bits, strict=True)
        ]
        return state.with_deltas(_multiplied(kept, self.factors))


@dataclass(frozen=True, slots=True)
class MaskOutliers(Step):
    """Drop the largest and the smallest magnitudes of each tensor: Model Breadcrumbs (arXiv:2312.06795).

    Args:
        density: the share to keep.
        gamma: the share of largest magnitudes to drop.
        rescale: `none` (the paper's), or `norm`: keep the L1 norm of each tensor.
    """

    phase: ClassVar[str] = DELTAS
    reach: ClassVar[int] = SCANNED
    settings: ClassVar[Mapping[str, Range]] = {"density": DENSITY, "gamma": Range(0, 1, below=True)}
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"rescale": ("none", "norm")}

    density: Setting = 0.14
    gamma: Setting = 0.01
    rescale: str = "none"

    def scan(self, view: View) -> Step:
        """The bounds of a tensor."""
        first = next(view.states())
        ranks = []
        for index in range(len(first.deltas)):
            density, gamma = first.value(self.density, index), first.value(self.gamma, index)
            ranks.append(() if density >= 1 else rules.band_ranks(density, gamma, view.numel))
        found = largest(view, lambda state: state.deltas, ranks, magnitudes=True)
        bounds = tuple((pair[1], pair[0]) if pair else (0.0, float("inf")) for pair in found)
        band = Band(bounds, (1.0,) * len(bounds))
        return rescaled(band, view) if self.rescale == "norm" else band


@dataclass(frozen=True, slots=True)
class Band(Step):
    """Keep the entries between two known magnitudes and multiply by a factor, one of each per expert."""

    phase: ClassVar[str] = DELTAS

    bounds: tuple[tuple[float, float], ...]
    factors: tuple[float, ...]

    def __call__(self, state: State) -> State:
        pairs = zip(state.deltas, self.bounds, strict=True)
        kept = [rules.band(delta, low, high) for delta, (low, high) in pairs]
        return state.with_deltas(_multiplied(kept, self.factors))


@dataclass(frozen=True, slots=True)
class DropByRank(Step):
    """Drop entries at random, small ones more often: MagPrune of DELLA (arXiv:2406.11617).

    Args:
        density: the share to keep.
        epsilon: half the width of the range of probabilities.
        rescale: `probability` divides each entry by its own, as in the paper; `norm` keeps each tensor's L1 norm;
            or `none`.
    """

    phase: ClassVar[str] = DELTAS
    reach: ClassVar[int] = SCANNED
    settings: ClassVar[Mapping[str, Range]] = {"density": DENSITY, "epsilon": Range(0, 0.5)}
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"rescale": ("probability", "norm", "none")}

    density: Setting = 0.5
    epsilon: Setting = 0.15
    rescale: str = "probability"

    def scan(self, view: View) -> Step:
        """Each entry's factor: 0, or 1, or 1 over its probability."""
        first = next(view.states())
        count, numel = len(first.deltas), view.numel
        densities = [first.value(self.density, index) for index in range(count)]
        epsilons = [first.value(self.epsilon, index) for index in range(count)]
        sources = [rules.RandomBits(first.group.generator(index)) for index in range(count)]
        exact = self.rescale == "probability"
        kind = first.deltas[0].dtype if exact else torch.uint8
        factors = [torch.ones(0 if d >= 1 else numel, dtype=kind) for d in densities]
        for start, blocks in row_blocks(view):
            for rows, density, epsilon, source, kept in zip(blocks, densities, epsilons, sources, factors, strict=True):
                if density < 1:
                    rule = rules.rank_factors if exact else rules.rank_mask
                    drawn = rule(rows, density, epsilon, source).reshape(-1)
                    kept[start : start + drawn.numel()] = drawn
        step = Weighed(tuple(factors), (1.0,) * count)
        return rescaled(step, view) if self.rescale == "norm" else step

    def faults(self, where: str) -> list[Fault]:
        """Probabilities must lie between 0 and 1."""
        faults = Step.faults(self, where)
        for density, epsilon in [] if faults else _pairs(self.density, self.epsilon):
            low, high = density - epsilon, density + epsilon
            if density < 1 and (low <= 0 or high > 1):
                found = f"density -+ epsilon is {low:g} to {high:g}"
                faults.append(Fault(f"{where}.epsilon", found, "probabilities in (0, 1]", "Lower epsilon."))
        return faults


def _pairs(first: Setting, second: Setting) -> list[tuple[float, float]]:
    """Two settings' numbers, together for all experts or for each; none where a setting depends on the tensor."""
    tables = [each for each in (first, second) if isinstance(each, Mapping)]
    keys: list[Any] = list(dict.fromkeys(key for table in tables for key in table)) or [None]
    found = []
    for key in keys:
        a, b = (each.get(key) if isinstance(each, Mapping) else each for each in (first, second))
        if isinstance(a, int | float) and isinstance(b, int | float):
            found.append((float(a), float(b)))
    return found


@dataclass(frozen=True, slots=True)
class Weighed(Step):
    """Multiply by a known number per entry and one per expert; no numbers mean that all are 1."""

    phase: ClassVar[str] = DELTAS

    numbers: tuple[Tensor, ...]
    factors: tuple[float, ...]

    def __call__(self, state: State) -> State:
        start, kept = state.group.start, []
        for delta, numbers in zip(state.deltas, self.numbers, strict=True):
            if not numbers.numel():
                kept.append(delta)
                continue
            part = numbers[start : start + delta.numel()].to(delta.dtype).reshape(delta.shape).to(delta.device)
            kept.append(delta * part)
        return state.with_deltas(_multiplied(kept, self.factors))


def row_blocks(view: View) -> Iterator[tuple[int, list[Tensor]]]:
    """The task vectors of a tensor as blocks of whole rows, with the place of the first entry; a vector is one row."""
    width = view.shape[1:].numel() if len(view.shape) > 1 else view.numel
    start = 0
    rest: list[Tensor] = []
    for state in view.states():
        flat = [delta.reshape(-1) for delta in state.deltas]
        joined = [torch.cat(pair) for pair in zip(rest, flat, strict=True)] if rest else flat
        whole = joined[0].numel() // width * width if width else 0
        if whole:
            yield start, [vector[:whole].reshape(-1, width) for vector in joined]
        start, rest = start + whole, [vector[whole:] for vector in joined] if whole < joined[0].numel() else []


@dataclass(frozen=True, slots=True)
class SelectVariance(Step):
    """Keep the entries that vary most across experts: SCE's selection (arXiv:2408.07990).

    Args:
        select_topk: the share of the entries with a variance other than 0 to keep.
    """

    phase: ClassVar[str] = DELTAS
    reach: ClassVar[int] = SCANNED
    settings: ClassVar[Mapping[str, Range]] = {"select_topk": DENSITY}

    select_topk: Setting = 0.1

    def scan(self, view: View) -> Step:
        """The variance from which a tensor's entries are kept."""
        share = next(view.states()).value(self.select_topk)
        if share >= 1:
            return VarianceCut(0.0)
        varying = sum(int(np.count_nonzero(rules.variance(state.deltas).cpu().numpy())) for state in view.states())
        count = int(varying * share)
        if count == 0:
            return VarianceCut(float("inf"))
        scores = largest(view, lambda state: [rules.variance(state.deltas)], [[count]])
        return VarianceCut(scores[0][0])


@dataclass(frozen=True, slots=True)
class VarianceCut(Step):
    """Keep the entries of at least a known variance across experts."""

    phase: ClassVar[str] = DELTAS

    threshold: float

    def __call__(self, state: State) -> State:
        if self.threshold <= 0:
            return state
        keep = rules.trim(rules.variance(state.deltas), self.threshold).sign_()
        return state.with_deltas([delta * keep for delta in state.deltas])


@dataclass(frozen=True, slots=True)
class TrustRegion(Step):
    """Drop the entries in which task vectors conflict most: TATR without data (Sun et al., ICLR 2025).

    Args:
        quantile: entries whose conflict sum_{i != j} |tau_i| |tau_j| is at or above this quantile of the model go.
    """

    phase: ClassVar[str] = DELTAS
    settings: ClassVar[Mapping[str, Range]] = {"quantile": Range(0, 1)}

    quantile: float = 0.99
    threshold: float = float("inf")

    def bind(self, view: View) -> Step:
        """The quantile over the whole model: the value at place floor(quantile n) in ascending order."""
        size = view.numel
        rank = size - min(int(self.quantile * size), size - 1)
        scores = largest(view, lambda state: [rules.overlap(state.deltas)], [[rank]])
        return replace(self, threshold=scores[0][0])

    def __call__(self, state: State) -> State:
        keep = rules.overlap(state.deltas) < self.threshold
        return state.with_deltas([delta * keep for delta in state.deltas])


def rescaled(step: Cut | CutRows | Dropping | Band | Weighed, view: View) -> Step:
    """A step with the factors that keep the L1 norm of each task vector of a tensor."""
    before, after = _norms(view, None), _norms(view, step)
    factors = [b / a if min(a, b) > _TINY else 1.0 for a, b in zip(after, before, strict=True)]
    return replace(step, factors=tuple(factors))


def _norms(view: View, step: Step | None) -> list[float]:
    totals: list[float] = []
    for state in view.states():
        deltas = state.deltas if step is None else step(state).deltas
        sums = [float(delta.abs().sum()) for delta in deltas]
        totals = [total + part for total, part in zip(totals, sums, strict=True)] if totals else sums
    return totals


def _multiplied(deltas: Sequence[Tensor], factors: Sequence[float]) -> list[Tensor]:
    return [d if factor == 1 else d * factor for d, factor in zip(deltas, factors, strict=True)]
