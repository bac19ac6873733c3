"""Nested outputs and targets as columns with one entry per item, and back.

A tensor (n, ...) is a column; so is a list with one object per item (boxes of an image, a text). Tuples and
dictionaries of columns become several columns whose names carry the path: `target.0`, `target.query`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusion_eval.errors import EvaluationError, Fault
from fusion_eval.evaluation.rows import Column


def columns_of(name: str, value: Any, items: int, where: str) -> dict[str, Column]:
    """The columns of one batch's value; None has none.

    Raises:
        EvaluationError: a part has not one entry per item.
    """
    if value is None:
        return {}
    if isinstance(value, np.ndarray):
        value = torch.as_tensor(value)
    if is_texts(value):
        value = list(value)
    if isinstance(value, Mapping):
        return _parts(name, value.items(), items, where)
    if isinstance(value, tuple) or (isinstance(value, list) and _is_collated_tuple(value, items)):
        return _parts(name, enumerate(value), items, where)
    if not isinstance(value, Tensor | list):
        value = [value]
    length = value.shape[0] if isinstance(value, Tensor) and value.ndim else (1 if isinstance(value, Tensor) else None)
    length = len(value) if length is None else length
    if length != items:
        raise EvaluationError(
            Fault(f"{where}, {name}", f"{length} entries for a batch of {items} items", "one entry per item")
        )
    return {name: value.reshape(1) if isinstance(value, Tensor) and not value.ndim else value}


def _parts(name: str, parts: Any, items: int, where: str) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for key, part in parts:
        found.update(columns_of(f"{name}.{key}", part, items, where))
    return found


def _is_collated_tuple(value: list[Any], items: int) -> bool:
    """Whether a list is what PyTorch's collate makes of tuples: a tensor with all items per part."""
    return bool(value) and all(isinstance(part, Tensor) and part.ndim and len(part) == items for part in value)


def joined_batches(batches: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    """The columns of several batches, one after the other; tensors of different shapes become one tensor per item."""
    return {name: joined_columns([batch[name] for batch in batches]) for name in batches[0]}


def joined_columns(columns: Sequence[Column]) -> Column:
    """Columns one after the other."""
    if len(columns) == 1:
        return columns[0]
    tensors = [column for column in columns if isinstance(column, Tensor)]
    if len(tensors) == len(columns) and len({column.shape[1:] for column in tensors}) == 1:
        return torch.cat(tensors)
    return [entry for column in columns for entry in column]


def rebuilt(columns: Mapping[str, Column], name: str) -> Any:
    """The value whose columns these are: a column, a tuple or a dictionary; None where there is none."""
    if name in columns:
        return columns[name]
    keys = list(dict.fromkeys(key[len(name) + 1 :].split(".")[0] for key in columns if key.startswith(f"{name}.")))
    if not keys:
        return None
    parts = {key: rebuilt(columns, f"{name}.{key}") for key in keys}
    return tuple(parts.values()) if all(key.isdigit() for key in keys) else parts


def part_of(value: Any, index: slice | Tensor) -> Any:
    """Some items of a rebuilt value."""
    if isinstance(value, Tensor):
        return value[index]
    if isinstance(value, tuple):
        return tuple(part_of(part, index) for part in value)
    if isinstance(value, dict):
        return {key: part_of(part, index) for key, part in value.items()}
    if isinstance(value, list):
        return value[index] if isinstance(index, slice) else [value[i] for i in index.tolist()]
    return value


def length_of(value: Any) -> int:
    """How many items a batch's input or target holds."""
    if isinstance(value, Mapping):
        return length_of(next(iter(value.values())))
    if isinstance(value, tuple) and not is_texts(value):
        return length_of(value[0])
    if isinstance(value, Tensor | np.ndarray):
        return int(value.shape[0]) if value.ndim else 1
    return len(value) if isinstance(value, list | tuple) else 1


def is_texts(value: Any) -> bool:
    """Whether a value is what PyTorch's collate makes of texts: a tuple with one per item."""
    return isinstance(value, tuple) and bool(value) and all(isinstance(entry, str) for entry in value)


def on_cpu(value: Any) -> Any:
    """The value with every tensor in it on the CPU, and none attached to a graph."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: on_cpu(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        moved = [on_cpu(entry) for entry in value]
        return tuple(moved) if isinstance(value, tuple) else moved
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor inside one item's entry."""
    if isinstance(value, Tensor):
        return [value]
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for entry in entries for tensor in tensors_in(entry)]
