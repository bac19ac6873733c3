"""Which rank evaluates which items, and loaders that keep to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from fusion_eval.errors import DataError, Fault

_OWNED = {
    "shuffle": "items are evaluated in the data set's order",
    "drop_last": "no item may be dropped",
    "sampler": "items are dealt to ranks by the evaluation",
    "batch_sampler": "items are dealt to ranks by the evaluation",
}


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
        options = dict(kwargs)
        self.batch_size: int = options.pop("batch_size", None) or 1
        refuse_owned(name, options)
        self.total = len(dataset) if isinstance(dataset, Sized) else None
        if self.total == 0:
            raise DataError(Fault(f"task '{name}'", "the data set has no items", do="Check its path and split."))
        self.items = self.total if limit is None or self.total is None else min(limit, self.total)
        if isinstance(dataset, IterableDataset):
            options["num_workers"] = 0
            self.loader: DataLoader[Any] = DataLoader(dataset, batch_size=self.batch_size, **options)
        else:
            assert self.items is not None
            sampler = DealtBatches(self.items, self.batch_size, rank, world)
            self.loader = DataLoader(dataset, batch_sampler=sampler, **options)

    @property
    def partial(self) -> bool:
        """Whether the limit leaves items out; an iterable data set with a limit counts as partial."""
        return self.limit is not None and (self.total is None or self.limit < self.total)

    def __len__(self) -> int:
        return len(self.loader)

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
            if self.limit is not None and start >= self.limit:
                return
            if index % self.world == self.rank:
                yield range(start, start + self.batch_size), batch


def refuse_owned(name: str, options: dict[str, Any]) -> None:
    """Take out the keywords that the evaluation owns when they say what it does anyway; refuse them otherwise."""
    faults = []
    for keyword, reason in _OWNED.items():
        if options.pop(keyword, None) not in (None, False):
            faults.append(
                Fault(f"dataloader_kwargs.{keyword} (task '{name}')", "set", "absent or false", f"Remove it: {reason}.")
            )
    if faults:
        raise DataError(*faults)
