"""Every rank's rows brought together on rank zero, each item exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fusion_eval.errors import DataError, EvaluationError, Fault, FusionEvalError, listed
from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.rows import Column, Rows
from fusion_eval.evaluation.spill import PIECE_BYTES, SPILL_BYTES, ColumnFile

Sizes = Mapping[str, tuple[int, str]]
"""Bytes of every tensor column, and its type and shape per item as text."""


def gathered(devices: Devices, rows: Rows | FusionEvalError, items: int | None, where: str) -> Rows | None:
    """All ranks' rows on rank zero, None elsewhere; an error of any rank is raised on every rank.

    Columns that are large in all are sent in pieces and kept in a file.

    Args:
        devices: the ranks.
        rows: this rank's rows, or what it failed with.
        items: how many items there must be, or None where the data set cannot tell.
        where: the task, for errors.

    Raises:
        EvaluationError: an item is missing or was evaluated twice.
        FusionEvalError: what a rank failed with, the first rank's first.
    """
    large = [] if devices.world == 1 else _large(devices, rows)
    parts = devices.gather(_without(rows, large))
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
    for name in large:
        assert isinstance(rows, Rows)
        column = _in_pieces(devices, rows, name)
        if whole is not None and column is not None:
            whole.columns[name] = column
    return whole


def _large(devices: Devices, rows: Rows | FusionEvalError) -> list[str]:
    """The columns whose parts of all ranks are large in all and alike, the same on every rank."""
    every = devices.gather({} if isinstance(rows, FusionEvalError) else _sizes(rows))
    names: list[str] = []
    if devices.is_zero:
        filled = [sizes for sizes in every if sizes]
        for name in filled[0] if filled else ():
            found = [sizes.get(name, (0, "")) for sizes in filled]
            if len({kind for _, kind in found}) == 1 and sum(size for size, _ in found) > SPILL_BYTES:
                names.append(name)
    return devices.broadcast(names)


def _sizes(rows: Rows) -> Sizes:
    if not len(rows):
        return {}
    return {
        name: (column.nbytes, f"{column.dtype} {tuple(column.shape[1:])}") if isinstance(column, Tensor) else (0, name)
        for name, column in rows.columns.items()
    }


def _without(rows: Rows | FusionEvalError, names: Sequence[str]) -> Rows | FusionEvalError:
    if isinstance(rows, FusionEvalError) or not names:
        return rows
    return Rows(rows.ids, {name: column for name, column in rows.columns.items() if name not in names})


def _in_pieces(devices: Devices, rows: Rows, name: str) -> Tensor | None:
    """A column of all ranks on rank zero, in the order of the items' ids; None elsewhere.

    Items are dealt so that every rank's ids ascend: in every round each rank sends its next items, as long as they are
    below the lowest last id of a round, so that what arrives can be written in order.
    """
    column: Column = rows.columns.get(name, [])
    file: ColumnFile | None = None
    start, waiting = 0, _Waiting()
    while True:
        step = max(1, PIECE_BYTES // max(1, _item_bytes(column)))
        part = slice(start, min(start + step, len(rows)))
        start = part.stop
        sent = (rows.ids[part].clone(), column[part].clone()) if isinstance(column, Tensor) else None
        arrived = devices.gather((sent, start >= len(rows)))
        if devices.is_zero:
            for rank, (piece, last) in enumerate(arrived):
                waiting.add(rank, piece, last)
            for ready in waiting.ready():
                file = file or ColumnFile(ready)
                file.add(ready)
        if devices.broadcast(devices.is_zero and all(last for _, last in arrived)):
            return None if file is None else file.tensor()


class _Waiting:
    """Pieces that arrived, until no earlier item can come any more."""

    def __init__(self) -> None:
        self.ids = torch.empty(0, dtype=torch.int64)
        self.values: Tensor | None = None
        self.reached: dict[int, float] = {}

    def add(self, rank: int, piece: tuple[Tensor, Tensor] | None, last: bool) -> None:
        """A rank's next items; `last` where it has no more."""
        if piece is not None and len(piece[0]):
            ids, values = piece
            self.reached[rank] = float(ids[-1])
            self.ids = torch.cat([self.ids, ids])
            self.values = values if self.values is None else torch.cat([self.values, values])
        if last:
            self.reached[rank] = float("inf")
        self.reached.setdefault(rank, -1.0)

    def ready(self) -> list[Tensor]:
        """Items up to the id that every rank has reached, in order."""
        if self.values is None or not len(self.ids):
            return []
        order = torch.argsort(self.ids)
        self.ids, self.values = self.ids[order], self.values[order]
        count = int((self.ids <= min(self.reached.values())).sum())
        found, self.ids, self.values = self.values[:count], self.ids[count:].clone(), self.values[count:].clone()
        return [found] if count else []


def _item_bytes(column: Column) -> int:
    return column.nbytes // max(1, len(column)) if isinstance(column, Tensor) else 1


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
