"""Models that look their outputs up by the item ids that they are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Table(nn.Module):
    """Row i of a table for input i."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids.long().reshape(-1)]


class Listed(nn.Module):
    """Entry i of a list for input i."""

    def __init__(self, entries: list[Any]) -> None:
        super().__init__()
        self.entries = entries

    def forward(self, ids: Any) -> list[Any]:
        return [self.entries[int(i)] for i in ids]


def noise(seed: int, shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
    """Normal noise."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def loader(target: Tensor, batch_size: int = 32) -> DataLoader[Any]:
    """Batches of (item id, target)."""
    return DataLoader(TensorDataset(torch.arange(len(target)), target), batch_size)
