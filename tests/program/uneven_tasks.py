"""A pool, data sets and models for runs in several processes; imported by the workers too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fusion_eval import BaseModelPool
from fusion_eval.merge.checkpoint import Checkpoint, StateDictCheckpoint

CLASSES = 5


class Points(Dataset[tuple[Tensor, int]]):
    """Random points, whose label is a function of the point."""

    def __init__(self, items: int, broken: int | None = None) -> None:
        generator = torch.Generator().manual_seed(items)
        self.points = torch.randn(items, 16, generator=generator)
        self.labels = self.points[:, :CLASSES].argmax(1)
        if broken is not None:
            self.points[broken] = float("nan")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.points[index], int(self.labels[index])


class Net(nn.Module):
    """Linear layers around a BatchNorm, whose buffers must not be synchronised during evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class NetPool(BaseModelPool):
    """A random base and two neighbours of it."""

    base_name = "base"
    expert_names = ("one", "two")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def skeleton(self) -> nn.Module:
        return Net()

    def open(self, name: str) -> Checkpoint:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            state: Mapping[str, Tensor] = Net().state_dict()
            torch.manual_seed(self.names.index(name))
            moved = {
                key: tensor + 0.1 * torch.randn_like(tensor).abs() if tensor.is_floating_point() else tensor
                for key, tensor in state.items()
            }
        return StateDictCheckpoint(moved, f"net {name}")
