"""Weights of a mixture that no dense model has: routers, idle experts, and experts scaled or with noise."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, final

import torch
from torch import Tensor

from fusion_eval.merge.checkpoint import Checkpoint, TensorSpec
from fusion_eval.merge.views import View

IDLE: Final = 128
"""Neurons of a shared expert that adds nothing: few, and divisible for quantised and parallel servers."""


@final
class Gates(Checkpoint):
    """The routers' weights, computed together when the first one is read."""

    def __init__(self, names: Sequence[str], spec: TensorSpec, make: Callable[[], Sequence[Tensor]]) -> None:
        self._names, self._spec, self._make = tuple(names), spec, make

    @cached_property
    def _rows(self) -> dict[str, Tensor]:
        return dict(zip(self._names, self._make(), strict=True))

    def read(self, name: str) -> Tensor:
        """One layer's router (experts, hidden)."""
        return self._rows[name].to(self._spec.dtype)

    def spec(self, name: str) -> TensorSpec:
        """(experts, hidden)."""
        return self._spec

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@final
class Zeros(Checkpoint):
    """Tensors of zeros."""

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        self._specs = dict(specs)

    def read(self, name: str) -> Tensor:
        """New zeros."""
        spec = self._specs[name]
        return torch.zeros(spec.shape, dtype=spec.dtype)

    def spec(self, name: str) -> TensorSpec:
        """As given."""
        return self._specs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


@final
class ExpertWeights(View):
    """A dense model whose feed-forward layers have noise in their weights and scaled answers."""

    def __init__(self, inner: Checkpoint, residual: float, noise: float, seed: str) -> None:
        super().__init__(inner, f"residual_scale {residual}, noise_scale {noise}, seed {seed}")
        self._residual, self._noise, self._seed = residual, noise, seed

    def read(self, name: str) -> Tensor:
        """The tensor, with noise and scaled."""
        tensor = self._inner.read(name)
        made = tensor.float()
        if self._noise:
            made = made + torch.randn(tensor.shape, generator=_generator(f"{self._seed}/{name}")) * self._noise
        if ".down_proj." in name:
            made = made * self._residual
        return made.to(tensor.dtype)


def expert_weights(dense: Checkpoint, residual: float, noise: float, seed: str) -> Checkpoint:
    """A dense model as an expert: its answers times `residual`, its weights with noise of that standard deviation."""
    return dense if (residual, noise) == (1.0, 0.0) else ExpertWeights(dense, residual, noise, seed)


def idle_spec(name: str, hidden: int, dtype: torch.dtype) -> TensorSpec:
    """The shape of a matrix of an expert with `IDLE` neurons."""
    return TensorSpec((hidden, IDLE) if ".down_proj." in name else (IDLE, hidden), dtype)


def random_rows(shape: tuple[int, int], key: str, mode: str) -> Tensor:
    """A router that prefers no expert, the same on every run."""
    generator = _generator(key)
    if mode == "uniform_random":
        return (torch.rand(shape, generator=generator) * 2 - 1) / math.sqrt(shape[1])
    return torch.randn(shape, generator=generator) * 0.02


def _generator(key: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(key.encode()))
