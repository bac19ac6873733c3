"""Per-item rows of an evaluation: kept by every rank, brought together once, each item exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusion_eval.errors import DataError, EvaluationError, Fault, FusionEvalError, listed
from fusion_eval.evaluation.devices import Devices

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


def gathered(devices: Devices, rows: Rows | FusionEvalError, items: int | None, where: str) -> Rows | None:
    """All ranks' rows on rank zero, None elsewhere; an error of any rank is raised on every rank.

    Args:
        devices: the ranks.
        rows: this rank's rows, or what it failed with.
        items: how many items there must be, or None where the data set cannot tell.
        where: the task, for errors.

    Raises:
        EvaluationError: an item is missing or was evaluated twice.
        FusionEvalError: what a rank failed with, the first rank's first.
    """
    parts = devices.gather(rows)
    outcome: FusionEvalError | None = None
    whole: Rows | None = None
    if devices.is_zero:
        outcome = next((part for part in parts if isinstance(part, FusionEvalError)), None)
        if outcome is None:
            whole = Rows.join([part for part in parts if isinstance(part, Rows)])
            outcome = _count_fault(whole, items, where)
    outcome = devices.broadcast(outcome)
    if outcome is not None:
        raise outcome
    return whole


def _count_fault(rows: Rows, items: int | None, where: str) -> FusionEvalError | None:
    if items is None and not len(rows):
        return DataError(Fault(where, "the data set has no items", do="Check its path and split."))
    expected = len(rows) if items is None else items
    if len(rows) == expected and torch.equal(rows.ids, torch.arange(expected)):
        return None
    seen = torch.bincount(rows.ids, minlength=expected)
    missing = torch.nonzero(seen[:expected] == 0).flatten().tolist()
    repeated = torch.nonzero(seen > 1).flatten().tolist()
    return EvaluationError(
        Fault(
            where,
            f"{len(rows)} rows for {expected} items; missing: {listed(missing) or 'none'}; "
            f"repeated: {listed(repeated) or 'none'}",
            "each item once",
            "Check collate_fn and the data set's length.",
        )
    )


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
