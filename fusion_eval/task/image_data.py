"""Splits and columns of image data sets, for the nodes of `config/dataset`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import Subset

from fusion_eval.errors import DataError, Fault, listed

PARTS = ("train", "validation")


def held_out(dataset: Any, fraction: float = 0.1, seed: int = 0, part: str = "validation") -> Any:
    """A fixed random part of a data set: `fraction` of its items, or with part="train" the others.

    The same items on every machine; the items keep their order.

    Args:
        dataset: a Hugging Face data set or any map-style one.
        fraction: the share of the validation part, between 0 and 1.
        seed: which items.
        part: "validation" or "train".

    Raises:
        DataError: the fraction leaves one part empty, or there is no such part.
    """
    if part not in PARTS:
        raise DataError(Fault("held_out.part", f"'{part}'", f"one of {', '.join(PARTS)}"))
    count = len(dataset)
    kept = round(count * fraction)
    if not 0 < kept < count:
        raise DataError(Fault("held_out.fraction", f"{fraction} of {count} items", "a share that leaves items in both"))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    chosen = order[:kept] if part == "validation" else order[kept:]
    indices = sorted(chosen.tolist())
    select = getattr(dataset, "select", None)
    return select(indices) if callable(select) else Subset(dataset, indices)


def with_columns(dataset: Any, columns: Mapping[str, str]) -> Any:
    """A Hugging Face data set reduced to the columns `{old name: new name}`.

    Raises:
        DataError: listing the columns that it lacks.
    """
    lost = [name for name in columns if name not in dataset.column_names]
    if lost:
        found = f"no columns {listed(lost)}"
        raise DataError(Fault("with_columns", found, f"some of {listed(dataset.column_names, 20)}"))
    return dataset.select_columns(list(columns)).rename_columns({o: n for o, n in columns.items() if o != n})
