"""Per-item rows of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Column = Tensor | list[Any]
"""One entry per item: a tensor (n, ...) or a list of n objects of any shape."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of equal length and the ids (n,) of their items."""

    ids: Tensor
    columns: dict[str, Column]

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """All parts, in the order of their ids."""
        filled = [part for part in parts if len(part)]
        if not filled:
            return cls(torch.empty(0, dtype=torch.int64), {})
        ids = torch.cat([part.ids for part in filled])
        columns = {name: _joined([part.columns[name] for part in filled]) for name in filled[0].columns}
        if bool((ids[1:] > ids[:-1]).all()):
            return cls(ids, columns)
        order = torch.argsort(ids, stable=True)
        return cls(ids[order], {name: _ordered(column, order) for name, column in columns.items()})


def _joined(columns: Sequence[Column]) -> Column:
    if len(columns) == 1:
        return columns[0]
    tensors = [column for column in columns if isinstance(column, Tensor)]
    if len(tensors) == len(columns) and len({column.shape[1:] for column in tensors}) == 1:
        return torch.cat(tensors)
    return [entry for column in columns for entry in column]


def _ordered(column: Column, order: Tensor) -> Column:
    if isinstance(column, Tensor):
        return column[order]
    return [column[index] for index in order.tolist()]
