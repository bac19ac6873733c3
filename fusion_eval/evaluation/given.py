"""Data as a user gives it to a comparison: a DataLoader, a data set, or batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from fusion_eval.errors import DataError, Fault
from fusion_eval.evaluation.batches import EvaluationLoader
from fusion_eval.evaluation.columns import length_of
from fusion_eval.task.inputs import split_batch
from fusion_eval.task.task import BatchFields

_BATCH_SIZE = 64
_KEPT = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor")


class GivenBatches:
    """Batches in the order in which they come, with counted item ids; rank r of W takes batches r, r + W, ..."""

    items: int | None = None
    partial = False

    def __init__(self, name: str, batches: Iterable[Any], fields: BatchFields | None, rank: int, world: int) -> None:
        self.name, self.batches, self.fields, self.rank, self.world = name, batches, fields, rank, world

    def __len__(self) -> int:
        return _size(self.batches) or 0

    def __iter__(self) -> Iterator[tuple[range, Any]]:
        start = 0
        for index, given in enumerate(self.batches):
            batch = as_tensors(given)
            parts = split_batch(batch, self.fields, f"task '{self.name}'")
            items = length_of(parts.inputs)
            if index % self.world == self.rank:
                yield range(start, start + items), batch
            start += items


def as_tensors(batch: Any) -> Any:
    """The batch with tensors for numpy's arrays of numbers."""
    if isinstance(batch, np.ndarray):
        return torch.as_tensor(batch) if batch.dtype.kind in "biuf" else batch
    if type(batch) in (list, tuple):
        return type(batch)(as_tensors(part) for part in batch)
    return {key: as_tensors(part) for key, part in batch.items()} if type(batch) is dict else batch


def as_loader(
    name: str, data: Any, fields: BatchFields | None = None, *, collate: Any = None, rank: int = 0, world: int = 1
) -> EvaluationLoader | GivenBatches:
    """The data as batches with item ids, in one order for every model.

    A DataLoader over a whole data set is read in the data set's order, also where it shuffles. `collate` is for data
    sets, which say not themselves how their items become a batch.

    Raises:
        DataError: data that can be read only once, that is no data, or that is empty.
    """
    if isinstance(data, EvaluationLoader | GivenBatches):
        return data
    if isinstance(data, DataLoader):
        if _reads_everything(data):
            return EvaluationLoader(name, data.dataset, _keywords(data), rank=rank, world=world)
    elif isinstance(data, IterableDataset):
        raise DataError(Fault("data", "an iterable data set", "a DataLoader over it, or batches"))
    elif isinstance(data, Dataset):
        options = {"batch_size": _BATCH_SIZE} if collate is None else {"batch_size": _BATCH_SIZE, "collate_fn": collate}
        return EvaluationLoader(name, data, options, rank=rank, world=world)
    elif isinstance(data, Iterator):
        do = "Pass the DataLoader or list itself: it is read once per model."
        raise DataError(Fault("data", f"a {type(data).__name__}, which can be read only once", "batches", do))
    elif not isinstance(data, Iterable) or isinstance(data, str | bytes | dict):
        raise DataError(Fault("data", f"a {type(data).__name__}", "a DataLoader, a data set, or batches"))
    if _size(data) == 0:
        raise DataError(Fault("data", "no batches", "at least one", "Check the data set's path and split."))
    return GivenBatches(name, data, fields, rank, world)


def _size(data: Any) -> int | None:
    if isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset):
        return None
    return len(data) if isinstance(data, Sized) else None


def _reads_everything(loader: DataLoader[Any]) -> bool:
    """Whether the loader's batches are the data set's items, each once, in some order."""
    sampler = loader.sampler
    plain = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and not sampler.replacement and sampler._num_samples is None
    )
    return plain and loader.batch_size is not None and type(loader.batch_sampler).__name__ == "BatchSampler"


def _keywords(loader: DataLoader[Any]) -> dict[str, Any]:
    kept = {name: getattr(loader, name) for name in _KEPT}
    if not loader.num_workers:
        for name in ("timeout", "worker_init_fn", "prefetch_factor"):
            kept.pop(name)
    return {"batch_size": loader.batch_size, **{key: value for key, value in kept.items() if value is not None}}
