"""The merge itself: checkpoints side by side, a merge as a checkpoint, and the one loop that writes tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from fusion_eval.errors import AlignmentError, Fault, listed
from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.group import ElementwiseRule, Rule, TensorGroup

_CHUNK = 1 << 17  # elements of an elementwise rule's slice: a few float32 operands fit the second-level cache


class Sink(Protocol):
    """Where merged tensors go."""

    def write(self, name: str, tensor: Tensor, start: int = 0) -> None:
        """Take a run of the tensor's elements, in its final dtype, that begins at element `start`."""


class AlignedPool:
    """A base and experts whose tensors have equal names and shapes, checked without reading them.

    Args:
        base: the base's weights, or None.
        experts: the experts' weights by name, at least one.
        seed: the run's seed.

    Raises:
        AlignmentError: listing every tensor that is missing somewhere or has another shape.
    """

    def __init__(self, base: Checkpoint | None, experts: Mapping[str, Checkpoint], seed: int = 0) -> None:
        self.base, self.experts, self.seed = base, dict(experts), seed
        self._reference = base if base is not None else next(iter(self.experts.values()))
        faults = alignment_faults(base, self.experts)
        if faults:
            raise AlignmentError(*faults)

    @property
    def reference(self) -> Checkpoint:
        """The model that gives names, order, dtypes and integer buffers: the base, else the first expert."""
        return self._reference

    def group(self, name: str) -> TensorGroup:
        """The tensors called `name`, read now."""
        base = None if self.base is None else self.base[name]
        experts = tuple(expert[name] for expert in self.experts.values())
        return TensorGroup(name, base, experts, tuple(self.experts), self.seed)


def alignment_faults(base: Checkpoint | None, experts: Mapping[str, Checkpoint]) -> list[Fault]:
    """Names and shapes that differ between the reference and each other model, one fault per model and kind."""
    models = dict(experts) if base is None else {"base": base, **experts}
    (reference_name, reference), *others = models.items()
    faults = []
    for name, model in others:
        lost = [tensor for tensor in reference if tensor not in model]
        extra = [tensor for tensor in model if tensor not in reference]
        unequal = [
            f"{tensor} is {reference.spec(tensor).shape} in '{reference_name}' and {model.spec(tensor).shape} here"
            for tensor in reference
            if tensor in model and model.spec(tensor).shape != reference.spec(tensor).shape
        ]
        where, total = f"model '{name}'", len(reference)
        if lost:
            faults.append(Fault(where, f"lacks {len(lost)} of {total} tensors of '{reference_name}': {listed(lost)}"))
        if extra:
            faults.append(Fault(where, f"has {len(extra)} tensors that '{reference_name}' lacks: {listed(extra)}"))
        if unequal:
            what = f"{len(unequal)} of {total} tensors differ in shape: {listed(unequal)}"
            faults.append(Fault(where, what, do="Merge only models of one architecture."))
    return faults


class MergedCheckpoint(Checkpoint):
    """A merge as a checkpoint: a tensor is merged when it is read.

    Floating tensors go through the rule and are rounded once, to the reference's dtype; integer and boolean tensors
    (counters, position ids) are copied from the reference.
    """

    def __init__(self, rule: Rule, pool: AlignedPool) -> None:
        self.rule, self.pool = rule, pool

    def read(self, name: str) -> Tensor:
        """The merged tensor."""
        dtype = self.pool.reference.spec(name).dtype
        if not dtype.is_floating_point:
            return self.pool.reference[name].clone()
        group = self.pool.group(name)
        merged = _in_chunks(self.rule, group) if isinstance(self.rule, ElementwiseRule) else self.rule(group)
        return merged.to(dtype)

    def spec(self, name: str) -> TensorSpec:
        """As in the reference model."""
        return self.pool.reference.spec(name)

    @property
    def tied(self) -> Mapping[str, str]:
        """As in the reference model."""
        return self.pool.reference.tied

    @property
    def source(self) -> str:
        """What was merged."""
        return f"a merge of {listed(list(self.pool.experts))}"

    def __iter__(self) -> Iterator[str]:
        return iter(self.pool.reference)

    def __len__(self) -> int:
        return len(self.pool.reference)


def _in_chunks(rule: ElementwiseRule, group: TensorGroup) -> Tensor:
    """The rule over flat slices that fit the cache; equal to the rule over whole tensors."""
    reference = group.base if group.base is not None else group.experts[0]
    if reference.numel() <= _CHUNK:
        return rule(group)
    base = None if group.base is None else group.base.reshape(-1)
    experts = tuple(expert.reshape(-1) for expert in group.experts)
    out: Tensor | None = None
    for start in range(0, reference.numel(), _CHUNK):
        piece = slice(start, start + _CHUNK)
        merged = rule(
            TensorGroup(
                group.name,
                None if base is None else base[piece],
                tuple(expert[piece] for expert in experts),
                group.expert_names,
                group.seed,
            )
        )
        if out is None:
            out = torch.empty(reference.numel(), dtype=merged.dtype)
        out[piece] = merged
    assert out is not None
    return out.reshape(reference.shape)


def stream(checkpoint: Checkpoint, sink: Sink, *, rank: int = 0, world: int = 1) -> None:
    """Write a checkpoint's tensors to a sink: the only loop over tensors. Ranks take disjoint names."""
    for index, name in enumerate(checkpoint):
        if index % world == rank:
            sink.write(name, checkpoint.read(name))
