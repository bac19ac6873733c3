"""A checkpoint with low-rank updates: each weight is updated when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.group import CHUNK, working
from fusion_eval.merge.views import View


@dataclass(frozen=True, slots=True)
class Update:
    """What an adapter does to one weight, seen as a matrix W of rows: W + scale * left @ right.

    Args:
        left: (rows, rank).
        right: (rank, columns).
        scale: the adapter's scaling times its weight in the mix.
        magnitude: DoRA's length of each output vector, or None.
        outputs: the axis of the weight, as a matrix, that counts outputs: 0, or 1 where it is stored transposed.
    """

    left: Tensor
    right: Tensor
    scale: float
    magnitude: Tensor | None = None
    outputs: int = 0


@dataclass(frozen=True, slots=True)
class Adapter:
    """A PEFT adapter: updates of weights, and tensors that replace the base's, under the names of the base."""

    updates: Mapping[str, Update]
    replaced: Mapping[str, Tensor]
    key: str


class Adapted(View):
    """A base checkpoint with adapters; computed in float32 in blocks of rows, rounded once to the base's dtype."""

    def __init__(self, inner: Checkpoint, adapters: Sequence[Adapter], step: str) -> None:
        super().__init__(inner, step)
        self._updates: dict[str, list[Update]] = {}
        self._replaced: dict[str, Tensor] = {}
        self._keys = [adapter.key for adapter in adapters]
        for adapter in adapters:
            self._replaced |= adapter.replaced
            for name, update in adapter.updates.items():
                self._updates.setdefault(name, []).append(update)
        self._untied = [name for name in self._replaced if name in inner.tied]

    @property
    def tied(self) -> Mapping[str, str]:
        """The base's, without weights that an adapter replaces."""
        return {name: kept for name, kept in self._inner.tied.items() if name not in self._untied}

    def read(self, name: str) -> Tensor:
        """The adapted weight."""
        if name in self._replaced:
            return self._replaced[name]
        if name not in self._updates:
            return self._inner.read(name)
        weight = self._inner.read(name)
        return torch.cat(list(_adapted(weight, self._updates[name]))).reshape(weight.shape)

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The adapted weight in blocks of rows."""
        if name in self._replaced or name not in self._updates:
            yield self.read(name).reshape(-1)
        else:
            yield from _adapted(self._inner.read(name), self._updates[name])

    def spec(self, name: str) -> TensorSpec:
        """The base's, or that of a replaced tensor."""
        if name in self._replaced:
            tensor = self._replaced[name]
            return TensorSpec(tuple(tensor.shape), tensor.dtype)
        return self._inner.spec(name)

    def working_bytes(self, name: str) -> int:
        """The adapted copy, for an adapted weight."""
        if name in self._replaced:
            return 0
        own = 2 * self.spec(name).nbytes if name in self._updates else 0
        return own + self._inner.working_bytes(name)

    def key(self) -> str | None:
        """The base's key and the adapters'."""
        inner = super().key()
        return None if inner is None else f"{inner}|{self._keys}"

    def __contains__(self, name: object) -> bool:
        return name in self._inner or name in self._untied

    def __iter__(self) -> Iterator[str]:
        yield from self._inner
        yield from self._untied

    def __len__(self) -> int:
        return len(self._inner) + len(self._untied)


def _adapted(weight: Tensor, updates: Sequence[Update]) -> Iterator[Tensor]:
    """Flat blocks of rows of the adapted weight, in its dtype."""
    matrix = weight.reshape(weight.shape[0], -1)
    lengths = _column_lengths(matrix, updates)
    step = max(1, CHUNK // max(1, matrix.shape[1]))
    for start in range(0, matrix.shape[0], step):
        rows = slice(start, start + step)
        block = _updated(matrix, rows, updates)
        for update in updates:
            if update.magnitude is not None:
                magnitude = working(update.magnitude).reshape(-1)
                if update.outputs:
                    block *= magnitude / lengths
                else:
                    block *= (magnitude[rows] / torch.linalg.vector_norm(block, dim=1)).unsqueeze(1)
        yield block.to(weight.dtype).reshape(-1)


def _updated(matrix: Tensor, rows: slice, updates: Sequence[Update]) -> Tensor:
    block = working(matrix[rows]).clone()
    for update in updates:
        block.addmm_(update.left[rows].to(block.dtype), update.right.to(block.dtype), alpha=update.scale)
    return block


def _column_lengths(matrix: Tensor, updates: Sequence[Update]) -> Tensor:
    """Lengths of the columns of the updated matrix, where DoRA needs them: a first pass over the blocks."""
    squares = torch.zeros(matrix.shape[1], dtype=torch.float64)
    if any(update.magnitude is not None and update.outputs for update in updates):
        step = max(1, CHUNK // max(1, matrix.shape[1]))
        for start in range(0, matrix.shape[0], step):
            squares += _updated(matrix, slice(start, start + step), updates).square().sum(0, dtype=torch.float64)
    return squares.sqrt().float()
