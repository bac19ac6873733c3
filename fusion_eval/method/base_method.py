"""What a merging method is: something that makes one model of a pool's models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import Tensor, nn

from fusion_eval.errors import Fault
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.engine import AlignedPool, MergedCheckpoint
from fusion_eval.merge.group import ElementwiseRule, Rule, TensorGroup

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from fusion_eval.merge.per_task import TaskCheckpoints


class Pool(Protocol):
    """What a method may ask of a model pool."""

    @property
    def base_name(self) -> str | None:
        """The base model's name, or None."""

    @property
    def expert_names(self) -> tuple[str, ...]:
        """The experts' names, in order."""

    def checkpoint(self, name: str) -> Checkpoint:
        """The lazy weights of a model."""

    def load(self, name: str) -> nn.Module:
        """A model, newly built."""

    def build(self, checkpoint: Mapping[str, Tensor]) -> nn.Module:
        """A model with these weights."""

    def aligned(self, seed: int = 0) -> AlignedPool:
        """The pool's checkpoints side by side, checked for equal names and shapes."""


class Method(ABC):
    """A merging method; its hyperparameters are its constructor's arguments.

    Class attributes say what it needs, so that a run is refused before a weight is read.
    """

    needs_base: ClassVar[bool] = False
    min_experts: ClassVar[int] = 1
    max_experts: ClassVar[int | None] = None

    @abstractmethod
    def apply(
        self, pool: Pool, fabric: Fabric | None = None, *, seed: int = 0
    ) -> Checkpoint | TaskCheckpoints | nn.Module:
        """The merged weights, computed when read; or a model per task; or a network that is none of the pool's kind."""

    def recipe(self, seed: int) -> str | None:
        """The text of the recipe that the method follows, with the seed it draws from; None for all but recipes."""
        return None

    def faults(self, pool: Pool) -> list[Fault]:
        """What the pool lacks for this method."""
        found, name = [], type(self).__name__
        experts = len(pool.expert_names)
        if self.needs_base and pool.base_name is None:
            found.append(Fault("modelpool.base", f"no base model, which {name} needs", do="Set modelpool.base."))
        if experts < self.min_experts:
            found.append(Fault("modelpool.experts", f"{experts} experts", f"at least {self.min_experts} for {name}"))
        if self.max_experts is not None and experts > self.max_experts:
            found.append(Fault("modelpool.experts", f"{experts} experts", f"at most {self.max_experts} for {name}"))
        return found


class RuleMethod(Method):
    """A method that merges tensor by tensor: `prepare` looks at the whole pool once, the rule at one tensor.

    A method without preparation only writes `rule`, and sets `elementwise` when the rule is.
    """

    elementwise: ClassVar[bool] = False

    @property
    def finite(self) -> bool:
        """Whether merged values that are not finite are errors."""
        return True

    def prepare(self, pool: Pool, fabric: Fabric | None = None, *, seed: int = 0) -> Rule:
        """The rule to merge with; passes over data or over all tensors happen here."""
        return ElementwiseRule(self.rule) if self.elementwise else self.rule

    @abstractmethod
    def rule(self, group: TensorGroup) -> Tensor:
        """The merged tensor of one group, in float32 (float64 stays), of the group's shape."""

    def apply(self, pool: Pool, fabric: Fabric | None = None, *, seed: int = 0) -> Checkpoint:
        """The merge as a lazy checkpoint; the rule runs on Fabric's GPU, where it has one."""
        device = "cpu" if fabric is None or fabric.device.type != "cuda" else fabric.device
        return MergedCheckpoint(self.prepare(pool, fabric, seed=seed), pool.aligned(seed), device, finite=self.finite)
