"""Depth upscaling and other stacks of layers: models of another depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fusion_eval.errors import ConfigError, Fault, did_you_mean, listed
from fusion_eval.merge.checkpoint import Checkpoint
from fusion_eval.merge.engine import AlignedPool, MergedCheckpoint
from fusion_eval.merge.group import ElementwiseRule, TensorGroup
from fusion_eval.merge.layers import layer_counts
from fusion_eval.merge.setting import Range, setting_faults
from fusion_eval.merge.stack import LayerRange, stacked
from fusion_eval.method.base_method import Method, Pool

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class DepthUpscaling(Method):
    """The first L - m layers of a model, then its last L - m layers. SOLAR 10.7B: depth up-scaling, arXiv:2312.15166.

    Args:
        drop: m as a share of the L layers, rounded down; 1/4 as in the paper (8 of 32).
        stack: the name before the layer numbers, such as `model.layers`; None: the stack with the most layers.
    """

    max_experts: ClassVar[int | None] = 1

    def __init__(self, drop: float = 0.25, stack: str | None = None) -> None:
        faults = setting_faults("method.drop", drop, Range(0, 1, below=True))
        if faults:
            raise ConfigError(*faults)
        self.drop, self.stack = drop, stack

    def apply(self, pool: Pool, fabric: Fabric | None = None, *, seed: int = 0) -> Checkpoint:
        """The deeper model as a view of the expert."""
        expert = pool.checkpoint(pool.expert_names[0])
        counts = layer_counts(expert)
        total = max(counts.values(), default=0) if self.stack is None else counts.get(self.stack, 0)
        dropped = int(self.drop * total)
        ranges = [LayerRange(expert, 0, total - dropped), LayerRange(expert, dropped, total)]
        return checked(stacked(ranges, stack=self.stack))


class LayerStack(Method):
    """Layers of several models on top of each other (passthrough merges, "frankenmerges"). No paper.

    Args:
        ranges: (model, first layer, last layer + 1), from the input to the output; None: all layers of the first
            expert.
        stack: the name before the layer numbers, such as `model.layers`; None: the stack with the most layers.
    """

    def __init__(self, ranges: Sequence[Sequence[str | int]] | None = None, stack: str | None = None) -> None:
        faults = [fault for index, entry in enumerate(ranges or ()) for fault in _entry_faults(index, entry)]
        if faults:
            raise ConfigError(*faults)
        self.ranges = None if ranges is None else [(str(m), int(a), int(b)) for m, a, b in ranges]
        self.stack = stack

    def apply(self, pool: Pool, fabric: Fabric | None = None, *, seed: int = 0) -> Checkpoint:
        """The stack as a view of the models."""
        if self.ranges is None:
            return checked(pool.checkpoint(pool.expert_names[0]))
        parts = [LayerRange(pool.checkpoint(name), start, end) for name, start, end in self.ranges]
        return checked(stacked(parts, stack=self.stack))

    def faults(self, pool: Pool) -> list[Fault]:
        """Models that the pool lacks."""
        known = (*pool.expert_names, *(() if pool.base_name is None else (pool.base_name,)))
        return super().faults(pool) + [
            Fault(f"method.ranges[{index}]", f"no model '{name}'", f"one of {listed(known)}", did_you_mean(name, known))
            for index, (name, _, _) in enumerate(self.ranges or ())
            if name not in known
        ]


def checked(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, whose tensors are errors where they hold NaN."""
    return MergedCheckpoint(ElementwiseRule(_only), AlignedPool(None, {checkpoint.source: checkpoint}))


def _only(group: TensorGroup) -> Tensor:
    return group.experts[0]


def _entry_faults(index: int, entry: Sequence[str | int]) -> list[Fault]:
    shaped = not isinstance(entry, str) and len(entry) == 3
    if shaped and isinstance(entry[1], int) and isinstance(entry[2], int) and 0 <= entry[1] < entry[2]:
        return []
    return [Fault(f"method.ranges[{index}]", f"{entry!r}", "[model, first layer, last layer + 1]")]
