"""Which rank evaluates which items, and loaders that keep to it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sized
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from fusion_eval.errors import DataError, Fault, did_you_mean

_OWNED = {
    "shuffle": "items are evaluated in the data set's order",
    "drop_last": "no item may be dropped",
    "sampler": "items are dealt to ranks by the evaluation",
    "batch_sampler": "items are dealt to ranks by the evaluation",
}
_FUNCTIONS = ("collate_fn", "worker_init_fn")


class DealtBatches(Sampler[list[int]]):
    """Batches of consecutive item ids; rank r of W takes batches r, r + W, ...

    Every item is in exactly one batch of one rank, nothing is padded or repeated, and a batch holds the same items
    whatever the number of ranks, so that its forward pass gives the same bits.
    """

    def __init__(self, items: int, batch_size: int, rank: int = 0, world: int = 1) -> None:
        self.items, self.batch_size, self.rank, self.world = items, batch_size, rank, world

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(self.rank * self.batch_size, self.items, self.world * self.batch_size):
            yield list(range(start, min(start + self.batch_size, self.items)))

    def __len__(self) -> int:
        batches = -(-self.items // self.batch_size)
        return len(range(self.rank, batches, self.world))


class EvaluationLoader:
    """A data set's batches for this rank, with the ids of their items; iterated once per model.

    Args:
        name: the task, for errors.
        dataset: a map-style data set, or an iterable one (read in full by every rank, which keeps its own batches).
        kwargs: keywords of `torch.utils.data.DataLoader`.
        limit: evaluate only the first items.
        rank: this process among all.
        world: how many processes there are.

    Raises:
        DataError: the data set is empty, or a keyword would drop, repeat or reorder items.
    """

    def __init__(
        self,
        name: str,
        dataset: Dataset[Any],
        kwargs: Mapping[str, Any],
        *,
        limit: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.name, self.rank, self.world, self.limit = name, rank, world, limit
        if faults := keyword_faults(kwargs, f"dataloader_kwargs (task '{name}')"):
            raise DataError(*faults)
        options = {key: value for key, value in kwargs.items() if key not in _OWNED}
        self.batch_size: int = options.pop("batch_size", None) or 1
        self.total = _length(name, dataset)
        if self.total == 0:
            raise DataError(Fault(f"task '{name}'", "the data set has no items", do="Check its path and split."))
        self.items = self.total if limit is None or self.total is None else min(limit, self.total)
        self.loader: DataLoader[Any] = self._loader(dataset, options)

    @property
    def partial(self) -> bool:
        """Whether the limit leaves items out; an iterable data set with a limit counts as partial."""
        return self.limit is not None and (self.total is None or self.limit < self.total)

    def _loader(self, dataset: Dataset[Any], options: dict[str, Any]) -> DataLoader[Any]:
        if isinstance(dataset, IterableDataset):
            stream = dataset if self.limit is None else FirstItems(dataset, self.limit)
            return DataLoader(stream, batch_size=self.batch_size, **{**options, "num_workers": 0})
        assert self.items is not None
        sampler = DealtBatches(self.items, self.batch_size, self.rank, self.world)
        return DataLoader(dataset, batch_sampler=sampler, **options)

    def __len__(self) -> int:
        """How many batches there are; 0 for a stream that does not tell its length."""
        return 0 if self.items is None else -(-self.items // self.batch_size) if self._is_stream else len(self.loader)

    @property
    def _is_stream(self) -> bool:
        return isinstance(self.loader.dataset, IterableDataset)

    def __iter__(self) -> Iterator[tuple[range, Any]]:
        """Pairs of (ids of the batch's items, batch)."""
        if isinstance(self.loader.batch_sampler, DealtBatches):
            for ids, batch in zip(self.loader.batch_sampler, self.loader, strict=True):
                yield range(ids[0], ids[-1] + 1), batch
        else:
            yield from self._dealt_stream()

    def _dealt_stream(self) -> Iterator[tuple[range, Any]]:
        for index, batch in enumerate(self.loader):
            start = index * self.batch_size
            stop = start + self.batch_size
            if index % self.world == self.rank:
                yield range(start, stop if self.items is None else max(min(stop, self.items), start + 1)), batch


class FirstItems(IterableDataset[Any]):
    """The first items of a stream."""

    def __init__(self, stream: IterableDataset[Any], count: int) -> None:
        self.stream, self.count = stream, count

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.stream), self.count)


def keyword_faults(options: Mapping[str, Any], where: str) -> list[Fault]:
    """Keywords that the evaluation owns, that `DataLoader` does not take, or whose values cannot be used.

    Keywords that the evaluation owns may say what it does anyway, such as `shuffle=False`.
    """
    base, _, task = where.partition(" ")
    known = list(inspect.signature(DataLoader.__init__).parameters)[2:]
    faults = []
    for keyword, value in options.items():
        key = f"{base}.{keyword} {task}".rstrip()
        if keyword not in known:
            faults.append(Fault(key, "no keyword of torch.utils.data.DataLoader", do=did_you_mean(keyword, known)))
        elif keyword in _OWNED and value not in (None, False):
            faults.append(Fault(key, "set", "absent or false", f"Remove it: {_OWNED[keyword]}."))
        elif keyword == "batch_size" and value is not None and not _is_count(value):
            faults.append(Fault(key, repr(value), "a whole number, at least 1"))
        elif keyword in _FUNCTIONS and not (value is None or callable(value) or isinstance(value, Mapping)):
            faults.append(Fault(key, repr(value), "a function: a node with a _target_ and _partial_: true"))
    return faults or _refused(options, base, task)


def _refused(options: Mapping[str, Any], base: str, task: str) -> list[Fault]:
    """What `DataLoader` itself says, asked with a data set of one item, about keywords that need no building."""
    asked = {key: value for key, value in options.items() if key not in _OWNED and not isinstance(value, Mapping)}
    try:
        DataLoader([0], **asked)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        return [Fault(f"{base} {task}".rstrip(), " ".join(str(error).split()))]
    return []


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _length(name: str, dataset: Dataset[Any]) -> int | None:
    try:
        return len(dataset) if isinstance(dataset, Sized) else None
    except (TypeError, ValueError) as error:
        if isinstance(dataset, IterableDataset):
            return None  # a stream may have a __len__ that refuses
        raise DataError(Fault(f"task '{name}'", f"the data set's length failed with {error}", "a number")) from error
