"""A small pool of state dicts, with the shapes that methods treat differently."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from fusion_eval.merge.checkpoint import Checkpoint, StateDictCheckpoint
from fusion_eval.merge.engine import AlignedPool

SHAPES = {
    "embed.weight": (10, 6),
    "layers.0.linear.weight": (8, 6),
    "layers.0.linear.bias": (8,),
    "layers.0.conv.weight": (4, 3, 3, 3),
    "layers.1.linear.weight": (6, 8),
    "layers.1.norm.running_mean": (6,),
    "layers.1.norm.running_var": (6,),
    "head.weight": (5, 6),
}


@dataclass
class StatePool:
    """A model pool over state dicts."""

    base: Mapping[str, Tensor] | None
    experts: Mapping[str, Mapping[str, Tensor]]
    made: int = field(default=0)

    @property
    def base_name(self) -> str | None:
        return None if self.base is None else "base"

    @property
    def expert_names(self) -> tuple[str, ...]:
        return tuple(self.experts)

    def checkpoint(self, name: str) -> Checkpoint:
        state = self.base if name == "base" else self.experts[name]
        assert state is not None
        return StateDictCheckpoint(state, name)

    def load(self, name: str) -> nn.Module:
        raise NotImplementedError

    def build(self, checkpoint: Mapping[str, Tensor]) -> nn.Module:
        raise NotImplementedError

    def aligned(self, seed: int = 0) -> AlignedPool:
        base = None if self.base is None else self.checkpoint("base")
        return AlignedPool(base, {name: self.checkpoint(name) for name in self.experts}, seed)


def state_dict(seed: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    state = {name: (torch.randn(shape, generator=generator) * scale).to(dtype) for name, shape in SHAPES.items()}
    state["layers.1.norm.running_var"] = state["layers.1.norm.running_var"].abs() + 0.5
    return state | {"layers.1.norm.num_batches_tracked": torch.tensor(seed)}


def pool_of(count: int = 3, *, with_base: bool = True, dtype: torch.dtype = torch.float32, seed: int = 1) -> StatePool:
    base = state_dict(0, dtype=dtype)
    experts = {}
    for index in range(count):
        delta = state_dict(seed * 100 + index, 0.1)
        experts[f"task{index}"] = {
            name: (tensor + delta[name]).to(tensor.dtype) if tensor.is_floating_point() else delta[name]
            for name, tensor in base.items()
        }
    return StatePool(base if with_base else None, experts)


@pytest.fixture
def make_pool() -> Callable[..., StatePool]:
    return pool_of


@pytest.fixture
def pool() -> StatePool:
    return pool_of()
