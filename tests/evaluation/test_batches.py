"""Every item in exactly one batch of one rank, whatever the sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, TensorDataset

from fusion_eval.errors import DataError
from fusion_eval.evaluation.batches import DealtBatches, EvaluationLoader


@given(items=st.integers(0, 200), batch=st.integers(1, 50), world=st.integers(1, 7))
def test_every_item_once_in_batches_that_do_not_depend_on_the_world(items: int, batch: int, world: int) -> None:
    dealt = [list(DealtBatches(items, batch, rank, world)) for rank in range(world)]
    together = sorted((ids for rank in dealt for ids in rank), key=lambda ids: ids[0])
    assert together == list(DealtBatches(items, batch))
    assert [item for ids in together for item in ids] == list(range(items))
    assert [len(DealtBatches(items, batch, rank, world)) for rank in range(world)] == [len(rank) for rank in dealt]


def test_ids_come_with_their_items() -> None:
    data = TensorDataset(torch.arange(10) * 10)
    for world in (1, 2, 3):
        for rank in range(world):
            loader = EvaluationLoader("t", data, {"batch_size": 3}, rank=rank, world=world)
            for ids, (values,) in loader:
                assert values.tolist() == [10 * item for item in ids]


class Counting(IterableDataset[int]):
    def __iter__(self):
        return iter(range(10))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_streams_are_dealt_by_batches(world: int) -> None:
    seen = []
    for rank in range(world):
        for ids, batch in EvaluationLoader("t", Counting(), {"batch_size": 4}, rank=rank, world=world):
            assert batch.tolist() == [item for item in ids if item < 10]
            seen.extend(batch.tolist())
    assert sorted(seen) == list(range(10))


@pytest.mark.parametrize(
    ("limit", "partial", "items"), [(None, False, 10), (10, False, 10), (4, True, 4), (99, False, 10)]
)
def test_a_limit_takes_the_first_items_and_says_so(limit: int | None, partial: bool, items: int) -> None:
    loader = EvaluationLoader("t", TensorDataset(torch.arange(10)), {"batch_size": 3}, limit=limit)
    assert loader.partial is partial
    assert sum(len(ids) for ids, _ in loader) == items


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(DataError, match=r"task 'mnist': the data set has no items\. Check its path and split\."):
        EvaluationLoader("mnist", TensorDataset(torch.empty(0)), {"batch_size": 3})


def test_keywords_that_drop_or_reorder_items_are_refused_all_at_once() -> None:
    with pytest.raises(DataError) as caught:
        EvaluationLoader("t", TensorDataset(torch.arange(3)), {"batch_size": 3, "shuffle": True, "drop_last": True})
    assert len(caught.value.faults) == 2
    assert "dataloader_kwargs.drop_last (task 't'): set; expected absent or false" in str(caught.value)
    EvaluationLoader("t", TensorDataset(torch.arange(3)), {"batch_size": 3, "shuffle": False, "drop_last": False})


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        ("batch_size", 0, r"batch_size \(task 't'\): 0; expected a whole number, at least 1"),
        ("batch_size", -3, r"batch_size \(task 't'\): -3; expected"),
        ("batch_size", 2.5, r"batch_size \(task 't'\): 2.5; expected"),
        ("batch_size", "abc", r"batch_size \(task 't'\): 'abc'; expected"),
        ("nworkers", 2, r"nworkers \(task 't'\): no keyword of torch.utils.data.DataLoader.*'num_workers'"),
        ("num_workers", -1, r"dataloader_kwargs \(task 't'\): num_workers option should be non-negative"),
        ("prefetch_factor", 2, r"dataloader_kwargs \(task 't'\): prefetch_factor option"),
        ("collate_fn", "mine", r"collate_fn \(task 't'\): 'mine'; expected a function"),
    ],
)
def test_keywords_that_cannot_be_used_are_told(keyword: str, value: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        EvaluationLoader("t", TensorDataset(torch.arange(3)), {keyword: value})


class Told(Counting):
    def __len__(self) -> int:
        return 10


@pytest.mark.parametrize("stream", [Counting(), Told()])
@pytest.mark.parametrize(("limit", "items"), [(None, 10), (6, 6), (99, 10)])
@pytest.mark.parametrize("world", [1, 3])
def test_a_limited_stream_ends_inside_a_batch(
    stream: IterableDataset[int], limit: int | None, items: int, world: int
) -> None:
    seen = []
    for rank in range(world):
        loader = EvaluationLoader("t", stream, {"batch_size": 4}, limit=limit, rank=rank, world=world)
        for ids, batch in loader:
            assert loader.items is None or len(ids) == len(batch)
            seen.extend(batch.tolist())
    assert sorted(seen) == list(range(items))
    assert len(loader) == (0 if loader.items is None else -(-items // 4))
