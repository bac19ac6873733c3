"""A merge as a pipeline: select tensors, form task vectors, change, combine and calibrate them, add the base."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fusion_eval.errors import ConfigError, Fault, MethodError, listed
from fusion_eval.merge.engine import AlignedPool
from fusion_eval.merge.group import ElementwiseRule, Rule, ScannedRule, TensorGroup, working
from fusion_eval.merge.layers import layer_positions
from fusion_eval.merge.select import sampled_slices
from fusion_eval.merge.steps_combine import weighted_sum
from fusion_eval.method.base_method import Pool, RuleMethod
from fusion_eval.method.selection import Tensors
from fusion_eval.method.step.base import (
    COMBINE,
    DELTAS,
    ENTRYWISE,
    MERGED,
    ROWS,
    WHOLE,
    State,
    Step,
    choice_faults,
)

if TYPE_CHECKING:
    from lightning.fabric import Fabric

_PHASES = {DELTAS: 0, COMBINE: 1, MERGED: 2}
ORIGINS = ("base", "average", "none")


@dataclass(frozen=True, slots=True)
class Flow:
    """Bound steps and the policy around them: a rule.

    Args:
        steps: the steps in order.
        tensors: which tensors the steps apply to.
        origin: what task vectors start from: `base`, `average` of the experts, or `none`.
        positions: depth of each tensor by name.
    """

    steps: tuple[Step, ...]
    tensors: Tensors = field(default_factory=Tensors)
    origin: str = "base"
    positions: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, group: TensorGroup) -> Tensor:
        """The merged tensor of a group."""
        route = self.tensors.route(group.name) if group.numel else "base"
        if route == "base" and group.base is not None:
            return working(group.base)
        if route != "merge":
            return mean(group)
        merged = [_added(self.run(part)) for part in self.parts(group)]
        return merged[0] if len(merged) == 1 else torch.cat(merged)

    def combined(self, group: TensorGroup) -> Tensor:
        """The combined task vector of a group that is merged, flat where it was taken in parts."""
        merged = [self.run(part).required() for part in self.parts(group)]
        return merged[0] if len(merged) == 1 else torch.cat(merged)

    def parts(self, group: TensorGroup) -> list[TensorGroup]:
        """The matrices that steps on singular values take a tensor of more axes for; else the tensor itself."""
        shape = group.experts[0].shape
        if len(shape) < 3 or self.reach != WHOLE or self.tensors.kernels == "average" or not group.numel:
            return [group]
        if self.tensors.kernels == "flatten":
            return [group.shaped((shape[0], -1))]
        return list(group.shaped((-1, *shape[-2:])).matrices())

    def run(self, group: TensorGroup) -> State:
        """The state after the last step."""
        state = self.enter(group)
        if self.reach == WHOLE:
            _require_finite(state)
        for step in self.steps:
            state = step(state)
        return state

    def enter(self, group: TensorGroup) -> State:
        """The state before the first step: task vectors from the origin."""
        position, matrix = self.positions.get(group.name, 0.0), not self.tensors.is_table(group.name)
        if self.origin == "none":
            return State(group, None, group.values(), None, position, matrix)
        origin = group.required_base() if self.origin == "base" else mean(group)
        return State(group, origin, group.differences(origin), None, position, matrix)

    def scan(self, group: TensorGroup) -> Flow:
        """The flow for one tensor: each step in turn scans the slices as the steps before it leave them."""
        if self.tensors.route(group.name) != "merge":
            return self
        done = replace(self, steps=())
        for step in self.steps:
            scanned = step.scan(SliceView(group, done, max(step.reach, done.reach) == ROWS))
            done = replace(done, steps=(*done.steps, scanned))
        return done

    @property
    def reach(self) -> int:
        """What the steps must see of a tensor."""
        return max((step.reach for step in self.steps), default=ENTRYWISE)

    def as_rule(self) -> Rule:
        """The flow as the narrowest kind of rule, which lets the engine work in slices."""
        reach = self.reach
        if reach == ENTRYWISE:
            return ElementwiseRule(self)
        return self if reach == WHOLE else ScannedRule(self.scan, rows=reach == ROWS)


@dataclass(frozen=True, slots=True)
class SliceView:
    """One tensor in slices, or in blocks of rows, with the steps of a flow done."""

    group: TensorGroup
    flow: Flow
    rows: bool = False

    @property
    def numel(self) -> int:
        """Number of elements of the tensor."""
        return self.group.numel

    @property
    def shape(self) -> torch.Size:
        """The tensor's shape."""
        return self.group.experts[0].shape

    def states(self) -> Iterator[State]:
        """One slice after another."""
        return map(self.flow.run, self.group.blocks() if self.rows else self.group.slices())

    def sampled(self) -> Iterator[State]:
        """Slices that stand for the whole; random steps may draw other numbers for them."""
        pieces = itertools.islice(self.group.blocks(), 0, None, 16) if self.rows else sampled_slices(self.group)
        return map(self.flow.run, pieces)


@dataclass(frozen=True, slots=True)
class PoolView:
    """All tensors that a flow merges, as its next step will see them."""

    pool: AlignedPool
    flow: Flow

    @property
    def names(self) -> list[str]:
        """The tensors to be merged."""
        reference, route = self.pool.reference, self.flow.tensors.route
        return [name for name in reference if reference.spec(name).dtype.is_floating_point and route(name) == "merge"]

    @property
    def numel(self) -> int:
        """Number of elements of all these tensors."""
        return sum(self.pool.reference.spec(name).numel for name in self.names)

    @property
    def shape(self) -> torch.Size:
        """That of a vector of all of them."""
        return torch.Size((self.numel,))

    def states(self) -> Iterator[State]:
        """One tensor or slice after another, read from the pool anew."""
        for name in self.names:
            group = self.pool.group(name)
            if self.flow.reach == WHOLE:
                yield from map(self.flow.run, self.flow.parts(group))
            else:
                yield from SliceView(group, self.flow.scan(group), self.flow.reach == ROWS).states()

    def sampled(self) -> Iterator[State]:
        """Pieces that stand for all: slices of every tensor, or every eighth tensor where steps need whole ones."""
        if self.flow.reach == WHOLE:
            for group in map(self.pool.group, self.names[::8]):
                yield from map(self.flow.run, self.flow.parts(group))
            return
        for group in map(self.pool.group, self.names):
            yield from SliceView(group, self.flow.scan(group), self.flow.reach == ROWS).sampled()


class PipelineMethod(RuleMethod):
    """A method that is a composition of steps. A named method is a subclass that composes them.

    Args:
        steps: any number of steps on task vectors, one that combines them, any number on the combined vector.
        tensors: which tensors are merged and what the others become, as `Tensors` or its keys.
        origin: what task vectors start from: `base`, `average` of the experts, or `none` (the weights themselves).
        last: a regular expression for tensors outside the layers that count as the deepest.
    """

    needs_base: ClassVar[bool] = True

    def __init__(
        self,
        steps: Sequence[Step],
        *,
        tensors: Tensors | Mapping[str, Any] | None = None,
        origin: str = "base",
        last: str | None = None,
    ) -> None:
        faults = choice_faults("method.origin", origin, ORIGINS) + _order_faults(steps)
        for index, step in enumerate(steps):
            faults += step.faults(self.where(index))
        try:
            self.tensors = Tensors.of(tensors)
        except ConfigError as error:
            faults += error.faults
        if faults:
            raise ConfigError(*faults)
        self.steps, self.origin, self.last = tuple(steps), origin, last

    @property
    def finite(self) -> bool:
        """Whether merged values that are not finite are errors."""
        return self.tensors.nonfinite == "error"

    def where(self, index: int) -> str:
        """The config key under which a step's options stand."""
        return "method"

    def prepare(self, pool: Pool, fabric: Fabric | None = None, *, seed: int = 0) -> Rule:
        """The pipeline with what its steps must know of the whole pool."""
        return self.bind(pool.aligned(seed)).as_rule()

    def bind(self, pool: AlignedPool) -> Flow:
        """Each step bound in turn, seeing the tensors as the steps before it leave them."""
        positions = layer_positions(pool.reference, self.last)
        flow = Flow((), self.tensors, self.origin, positions)
        for step in self.steps:
            bound = step.bind(PoolView(pool, flow))
            flow = Flow((*flow.steps, bound), self.tensors, self.origin, positions)
        return flow

    def rule(self, group: TensorGroup) -> Tensor:
        """The merged tensor of one group, taken as a model of its own."""
        return Flow(self.steps, self.tensors, self.origin)(group)

    def faults(self, pool: Pool) -> list[Fault]:
        """What the pool lacks, and options that do not fit it."""
        found = super().faults(pool)
        if self.origin == "base" and pool.base_name is None and not self.needs_base:
            found.append(Fault("modelpool.base", "no base model, which method.origin=base needs", do="Set it."))
        if not pool.expert_names:
            return found
        names = tuple(pool.checkpoint(pool.expert_names[0]))
        for index, step in enumerate(self.steps):
            found += step.pool_faults(self.where(index), names, pool.expert_names)
        if any(step.uses_depth() for step in self.steps) and len(set(layer_positions(names, self.last).values())) < 2:
            what = f"no numbered layers among tensors such as {listed(names, 3)}"
            found.append(Fault("method", what, "layers, since an option depends on depth", "Use one number for all."))
        return found + self.tensors.faults(names)


class Pipeline(PipelineMethod):
    """A method composed in YAML: `steps` is a list of `_target_`s of `fusion_eval.method.step`."""

    needs_base: ClassVar[bool] = False  # depends on the origin

    def where(self, index: int) -> str:
        """The config key of a step."""
        return f"method.steps[{index}]"


def mean(group: TensorGroup) -> Tensor:
    """The average of the experts."""
    values = group.values()
    return weighted_sum(values, [1.0] * len(values), normalize=True)


def _added(state: State) -> Tensor:
    """The merged tensor of the last state."""
    merged = state.required()
    return merged if state.origin is None else merged + state.origin


def _require_finite(state: State) -> None:
    """Decompositions of what is not finite fail without saying whose it is."""
    names = state.group.expert_names or [str(index) for index in range(len(state.deltas))]
    broken = [name for name, delta in zip(names, state.deltas, strict=True) if not _is_finite(delta)]
    if broken:
        found = f"values that are not finite in {listed(broken)} (or in the base)"
        raise MethodError(Fault(f"tensor '{state.group.name}'", found, "finite numbers", "Leave that model out."))


def _is_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite; their sum tells so thirty times faster, unless it overflows."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def _order_faults(steps: Sequence[Step]) -> list[Fault]:
    """Steps out of order, or not exactly one that combines."""
    phases = [_PHASES[step.phase] for step in steps]
    names = " -> ".join(type(step).__name__ for step in steps) or "none"
    faults = []
    if phases.count(1) != 1:
        faults.append(Fault("method.steps", names, "exactly one step that combines the task vectors"))
    if phases != sorted(phases):
        faults.append(Fault("method.steps", names, "steps on task vectors, the combining step, steps on its result"))
    return faults
