"""Methods that give a model per task: the encoders' common part."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from fusion_eval.errors import ConfigError, Fault, MethodError
from fusion_eval.merge.engine import AlignedPool
from fusion_eval.merge.group import TensorGroup, working
from fusion_eval.merge.per_task import Encoder, Parts, TaskCheckpoints
from fusion_eval.method.base_method import Method, Pool
from fusion_eval.method.pipeline import Flow, mean
from fusion_eval.method.selection import Tensors

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class PerTaskMethod(Method):
    """A method whose result is a model for each task.

    Args:
        faults: what is wrong with the options.
        tensors: which tensors are encoded and what the others become.
    """

    needs_base: ClassVar[bool] = True

    def __init__(self, faults: Sequence[Fault], tensors: Tensors | Mapping[str, Any] | None) -> None:
        found = list(faults)
        try:
            self.tensors = Tensors.of(tensors)
        except ConfigError as error:
            found += error.faults
        if found:
            raise ConfigError(*found)

    @abstractmethod
    def encoder(self, pool: AlignedPool) -> Encoder:
        """The encoder, after whatever passes over the pool it needs."""

    def apply(self, pool: Pool, fabric: Fabric | None = None, *, seed: int = 0) -> TaskCheckpoints:
        """The tasks' models, encoded on demand."""
        aligned = pool.aligned(seed)
        return TaskCheckpoints.of(aligned, self.encoder(aligned))

    def faults(self, pool: Pool) -> list[Fault]:
        """What the pool lacks, and options that do not fit it."""
        found = super().faults(pool)
        if pool.expert_names:
            found += self.tensors.faults(tuple(pool.checkpoint(pool.expert_names[0])))
        return found


class SelectiveEncoder(Encoder):
    """An encoder that leaves tensors that are not selected to the policy: from the base, or averaged."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    def shared(self, group: TensorGroup) -> Parts:
        """The average's difference from the base, or what the encoder shares."""
        route = self.tensors.route(group.name)
        if route == "average":
            return {"delta": mean(group) - group.required_base()}
        return self.share(group) if route == "merge" else {}

    def own(self, group: TensorGroup, index: int, shared: Parts) -> Parts:
        """Nothing, or what the encoder gives a task."""
        return self.give(group, index, shared) if self.tensors.route(group.name) == "merge" else {}

    @abstractmethod
    def share(self, group: TensorGroup) -> Parts:
        """The shared parts of a selected tensor."""

    @abstractmethod
    def give(self, group: TensorGroup, index: int, shared: Parts) -> Parts:
        """An expert's parts of a selected tensor."""


def merged_vector(flow: Flow, group: TensorGroup) -> Tensor:
    """The combined task vector of a pipeline."""
    return flow.combined(group).reshape(group.experts[0].shape).to(group.required_base().dtype)


def task_vector(group: TensorGroup, index: int) -> Tensor:
    """One expert's task vector.

    Raises:
        MethodError: it is not finite.
    """
    vector = working(group.experts[index]) - group.required_base()
    if not bool(vector.isfinite().all()):
        who = group.expert_names[index] if group.expert_names else str(index)
        found = f"values that are not finite in {who} (or in the base)"
        raise MethodError(Fault(f"tensor '{group.name}'", found, "finite numbers", "Leave that model out."))
    return vector
