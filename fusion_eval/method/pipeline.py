"""A merge as a pipeline: select tensors, form task vectors, change, combine and calibrate them, add the base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.merge.engine import AlignedPool
from fusion_eval.merge.group import ElementwiseRule, Rule, TensorGroup, working
from fusion_eval.merge.layers import layer_positions
from fusion_eval.merge.steps_combine import weighted_sum
from fusion_eval.method.base_method import Pool, RuleMethod
from fusion_eval.method.selection import Tensors
from fusion_eval.method.step.base import COMBINE, DELTAS, MERGED, State, Step, choice_faults

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
        route = self.tensors.route(group.name)
        if route == "base" and group.base is not None:
            return working(group.base)
        if route != "merge":
            return mean(group)
        state = self.run(group)
        merged = state.required()
        return merged if state.origin is None else merged + state.origin

    def run(self, group: TensorGroup) -> State:
        """The state after the last step."""
        state = self.enter(group)
        for step in self.steps:
            state = step(state)
        return state

    def enter(self, group: TensorGroup) -> State:
        """The state before the first step: task vectors from the origin."""
        position = self.positions.get(group.name, 0.0)
        if self.origin == "none":
            return State(group, None, group.values(), position=position)
        if self.origin == "base":
            return State(group, group.required_base(), group.deltas(), position=position)
        average = mean(group)
        return State(group, average, tuple(value - average for value in group.values()), position=position)

    @property
    def elementwise(self) -> bool:
        """Whether every step works entry by entry."""
        return all(step.elementwise for step in self.steps)


@dataclass(frozen=True, slots=True)
class PoolView:
    """The tensors that a flow merges, as its next step will see them."""

    pool: AlignedPool
    flow: Flow

    def states(self) -> Iterator[State]:
        """One state after another, read from the pool anew."""
        for name in self.pool.reference:
            if self.pool.reference.spec(name).dtype.is_floating_point and self.flow.tensors.route(name) == "merge":
                yield self.flow.run(self.pool.group(name))


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

    def where(self, index: int) -> str:
        """The config key under which a step's options stand."""
        return "method"

    def prepare(self, pool: Pool, fabric: Fabric | None = None, *, seed: int = 0) -> Rule:
        """The pipeline with what its steps must know of the whole pool."""
        flow = self.bind(pool.aligned(seed))
        return ElementwiseRule(flow) if flow.elementwise else flow

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
        if not pool.expert_names:
            return found
        names = tuple(pool.checkpoint(pool.expert_names[0]))
        for index, step in enumerate(self.steps):
            found += step.pool_faults(self.where(index), names, pool.expert_names)
        return found + self.tensors.faults(names)


class Pipeline(PipelineMethod):
    """A method composed in YAML: `steps` is a list of `_target_`s of `fusion_eval.method.step`."""

    needs_base: ClassVar[bool] = False  # depends on the origin

    def where(self, index: int) -> str:
        """The config key of a step."""
        return f"method.steps[{index}]"

    def faults(self, pool: Pool) -> list[Fault]:
        """What the pool lacks, and options that do not fit it."""
        found = super().faults(pool)
        if self.origin == "base" and pool.base_name is None:
            found.append(Fault("modelpool.base", "no base model, which method.origin=base needs", do="Set it."))
        return found


def mean(group: TensorGroup) -> Tensor:
    """The average of the experts."""
    values = group.values()
    return weighted_sum(values, [1.0] * len(values), normalize=True)


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
