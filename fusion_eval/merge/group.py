"""One parameter across the models of a pool, and the rules that merge it."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

CHUNK: Final = 1 << 17
"""Elements of a slice: a few float32 operands of this length fit the second-level cache."""


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """A parameter's tensors in the base and in every expert, all of one shape.

    Args:
        name: the parameter's name.
        base: the base model's tensor, or None in a pool without a base.
        experts: one tensor per expert, in the pool's order, in their stored dtypes.
        expert_names: the experts' names, in the same order.
        seed: the run's seed, from which `generator` derives.
        start: in a flat slice of a tensor, the place of its first element in the whole.
    """

    name: str
    base: Tensor | None
    experts: tuple[Tensor, ...]
    expert_names: tuple[str, ...] = field(default=())
    seed: int = 0
    start: int = 0

    @property
    def numel(self) -> int:
        """Number of elements of the parameter, or of the slice."""
        return self.experts[0].numel()

    def flat(self) -> TensorGroup:
        """The same parameter as vectors."""
        base = None if self.base is None else self.base.reshape(-1)
        experts = tuple(expert.reshape(-1) for expert in self.experts)
        return TensorGroup(self.name, base, experts, self.expert_names, self.seed, self.start)

    def slices(self, length: int = CHUNK) -> Iterator[TensorGroup]:
        """Consecutive flat slices of at most `length` elements, which fit the cache; one, empty, of an empty tensor."""
        whole = self.flat()
        bases = itertools.repeat(None) if whole.base is None else iter(torch.split(whole.base, length))
        experts = zip(*(torch.split(expert, length) for expert in whole.experts), strict=True)
        for index, (base, pieces) in enumerate(zip(bases, experts, strict=False)):
            yield TensorGroup(self.name, base, pieces, self.expert_names, self.seed, index * length)

    def blocks(self, length: int = CHUNK) -> Iterator[TensorGroup]:
        """Consecutive runs of whole rows (entries of the first axis) of about `length` elements; vectors are whole."""
        shape = self.experts[0].shape
        if len(shape) < 2 or not self.numel:
            yield self
            return
        width = shape[1:].numel()
        step = max(1, length // width)
        for row in range(0, shape[0], step):
            base = None if self.base is None else self.base[row : row + step]
            experts = tuple(expert[row : row + step] for expert in self.experts)
            yield TensorGroup(self.name, base, experts, self.expert_names, self.seed, row * width)

    def shaped(self, shape: tuple[int, ...]) -> TensorGroup:
        """The same parameter in another shape."""
        base = None if self.base is None else self.base.reshape(shape)
        experts = tuple(expert.reshape(shape) for expert in self.experts)
        return TensorGroup(self.name, base, experts, self.expert_names, self.seed, self.start)

    def matrices(self) -> Iterator[TensorGroup]:
        """The entries of the first axis, each with randomness of its own."""
        for index in range(self.experts[0].shape[0]):
            base = None if self.base is None else self.base[index]
            experts = tuple(expert[index] for expert in self.experts)
            yield TensorGroup(self.name, base, experts, self.expert_names, hash((self.seed, index)), 0)

    def required_base(self) -> Tensor:
        """The base in float32 (float64 stays), for methods that declare `needs_base`."""
        assert self.base is not None, "the method did not declare needs_base"
        return working(self.base)

    def values(self) -> tuple[Tensor, ...]:
        """The experts in float32 (float64 stays)."""
        return tuple(working(expert) for expert in self.experts)

    def deltas(self) -> tuple[Tensor, ...]:
        """The task vectors expert - base, in float32 (float64 stays); freshly allocated, so rules may change them."""
        return self.differences(self.required_base())

    def differences(self, origin: Tensor) -> tuple[Tensor, ...]:
        """The experts less an origin, in float32 (float64 stays), freshly allocated."""
        return tuple(_less(expert, origin) for expert in self.experts)

    def generator(self, index: int = 0) -> torch.Generator:
        """Randomness for expert `index` of this tensor: a function of seed, tensor name and expert name only.

        So a mask is the same on one rank or many, in memory or from shards, whatever else is merged.
        """
        expert = self.expert_names[index] if self.expert_names else str(index)
        key = f"{self.seed}/{self.name}/{expert}".encode()
        return torch.Generator().manual_seed(zlib.crc32(key) | zlib.crc32(key[::-1]) << 32)


Rule = Callable[[TensorGroup], Tensor]
"""A pure function from a group to the merged tensor, in float32 (or float64); the engine rounds once."""


@dataclass(frozen=True, slots=True)
class ElementwiseRule:
    """A rule whose every output element depends on the same element of the inputs only.

    The engine may then call it on flat slices of the tensors (`group.base.shape == (n,)`), which keeps the working
    set in the cache. A rule that uses norms, thresholds, ranks or `group.generator` is not elementwise.

    Args:
        function: the rule.
        rows: the function needs whole rows: it is called on blocks of them, which keep the other axes.
    """

    function: Rule
    rows: bool = False

    def __call__(self, group: TensorGroup) -> Tensor:
        """The merged tensor, whole."""
        return self.function(group)

    def merged(self, group: TensorGroup) -> Iterator[tuple[TensorGroup, Tensor]]:
        """Piece after piece of the inputs, and what becomes of it."""
        for piece in group.blocks() if self.rows else group.slices():
            yield piece, self.function(piece)


@dataclass(frozen=True, slots=True)
class ScannedRule:
    """A rule that must know something about the whole tensor first, and is elementwise then.

    `scan` sees the whole group once (best through `group.slices()`, which never holds whole float32 copies) and returns
    the second part, for instance with thresholds, norms or generators in it. That part is called on consecutive flat
    slices, in order and each once, so it may draw random numbers as it goes; `group.start` says where a slice begins.
    TIES, DARE, breadcrumbs, slerp and model stock are of this kind.

    Args:
        scan: makes the second part.
        rows: the second part needs whole rows: it is called on blocks of them (`group.blocks()`), which keep the other
            axes. DELLA and Arcee Fusion are of this kind.
    """

    scan: Callable[[TensorGroup], Rule]
    rows: bool = False

    def __call__(self, group: TensorGroup) -> Tensor:
        """The merged tensor, whole."""
        whole = group if self.rows else group.flat()
        return self.scan(group)(whole).reshape(group.experts[0].shape)

    def merged(self, group: TensorGroup) -> Iterator[tuple[TensorGroup, Tensor]]:
        """Piece after piece of the inputs, and what becomes of it."""
        return ElementwiseRule(self.scan(group), self.rows).merged(group)


def _less(tensor: Tensor, origin: Tensor) -> Tensor:
    """A tensor less another, in their working dtype; written over the converted copy, where there is one."""
    value = working(tensor)
    return value.sub_(origin) if value is not tensor and value.dtype == origin.dtype else value - origin


def working(tensor: Tensor) -> Tensor:
    """The tensor in the dtype that merging computes in: float32, or float64 where it is float64."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
