"""Tiny data sets and models of several domains, and a task of one's own, for pools that are made of nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from torchmetrics.regression import MeanAbsoluteError

from fusion_eval import Task

ITEMS = 24


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def maps(seed: int = 0, items: int = ITEMS) -> TensorDataset:
    """Pictures whose class maps are the largest of three channels; 255 is void."""
    images = noise(seed, items, 3, 8, 8)
    target = images.argmax(1)
    target[:, 0] = 255
    return TensorDataset(images + noise(seed + 1, items, 3, 8, 8), target)


def numbers(outputs: int = 1) -> TensorDataset:
    """Vectors of three, and numbers that are near their sums."""
    x = noise(2, ITEMS, 3)
    y = x.sum(1, keepdim=True).repeat(1, outputs) + 0.3 * noise(3, ITEMS, outputs)
    return TensorDataset(x, y[:, 0] if outputs == 1 else y)


class Boxes(Dataset[tuple[Tensor, dict[str, Tensor]]]):
    """Images of different sizes with one to three objects."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        count = index % 3 + 1
        corner = noise(index, count, 2).abs() * 4
        boxes = torch.cat([corner, corner + 5 + index], dim=1)
        return noise(index, 3, 16 + index, 16), {"boxes": boxes, "labels": torch.arange(count) % 2}


class Detector(nn.Module):
    """Finds the first object of every image, shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(0.2))

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        found = []
        for image in images:
            index = image.shape[1] - 16
            truth = Boxes()[index][1]
            found.append(
                {
                    "boxes": truth["boxes"][:1] + self.shift,
                    "labels": truth["labels"][:1],
                    "scores": torch.tensor([0.5 + index / 20]),
                }
            )
        return found


def map_model() -> nn.Module:
    return nn.Conv2d(3, 3, 1)


def number_model() -> nn.Module:
    return nn.Linear(3, 1)


def halves(model: nn.Module, x: Tensor) -> tuple[Tensor, None]:
    return model(x)[:, 0] / 2, None


def own_task() -> Task:
    return Task(
        battery=lambda num_classes, ignore_index=None: {"error": MeanAbsoluteError()},
        predict_fn=halves,
        requires_num_classes=False,
        description="half of the output",
    )


OWN_TASK = own_task()
NOT_A_TASK: Any = 3
