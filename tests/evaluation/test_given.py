"""Data in every form that a user has it, read in one order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

from fusion_eval.errors import DataError
from fusion_eval.evaluation.batches import EvaluationLoader
from fusion_eval.evaluation.given import GivenBatches, as_loader

DATA = TensorDataset(torch.arange(10), torch.arange(10))


def ids_and_inputs(loader: Any) -> list[tuple[list[int], list[int]]]:
    return [(list(ids), batch[0].tolist()) for ids, batch in loader]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True}])
def test_loaders_over_a_data_set_are_read_whole_and_in_order(options: dict[str, Any]) -> None:
    found = as_loader("t", DataLoader(DATA, 4, **options))
    assert isinstance(found, EvaluationLoader)
    assert [inputs for _, inputs in ids_and_inputs(found)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_loaders_over_a_choice_of_items_keep_the_choice() -> None:
    found = as_loader("t", DataLoader(DATA, 2, sampler=SubsetRandomSampler([1, 3, 5])))
    assert isinstance(found, GivenBatches)
    assert sorted(i for _, inputs in ids_and_inputs(found) for i in inputs) == [1, 3, 5]


def test_lists_of_batches_are_counted_and_dealt() -> None:
    batches = [(torch.arange(3), torch.zeros(3)), (torch.arange(2), torch.zeros(2)), (torch.arange(1), torch.zeros(1))]
    assert [ids for ids, _ in ids_and_inputs(as_loader("t", batches))] == [[0, 1, 2], [3, 4], [5]]
    second = as_loader("t", batches, rank=1, world=2)
    assert [ids for ids, _ in ids_and_inputs(second)] == [[3, 4]]


def test_data_sets_are_batched() -> None:
    assert sum(len(ids) for ids, _ in as_loader("t", DATA)) == 10


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.tensor(i), torch.tensor(0)) for i in range(5)])


def test_streams_come_as_loaders() -> None:
    assert [ids for ids, _ in ids_and_inputs(as_loader("t", DataLoader(Stream(), 2)))] == [[0, 1], [2, 3], [4]]
    with pytest.raises(DataError, match="a DataLoader over it"):
        as_loader("t", Stream())


@pytest.mark.parametrize("data", [iter(DataLoader(DATA)), (b for b in [1])])
def test_what_can_be_read_only_once_is_refused(data: Any) -> None:
    with pytest.raises(DataError, match="can be read only once"):
        as_loader("t", data)


class Nothing(Dataset[Any]):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> Any:
        raise IndexError


@pytest.mark.parametrize("data", [[], Nothing()])
def test_empty_data_is_an_error(data: Any) -> None:
    with pytest.raises(DataError, match=r"no batches|no items"):
        as_loader("t", data)


@pytest.mark.parametrize("data", [None, 3, "path", {"a": 1}])
def test_what_is_no_data_is_refused(data: Any) -> None:
    with pytest.raises(DataError, match="a DataLoader, a data set, or batches"):
        as_loader("t", data)
