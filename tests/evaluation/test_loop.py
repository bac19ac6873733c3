"""The loop: eval mode and back, outputs in item order, errors with their item."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fusion_eval.errors import DataError, EvaluationError
from fusion_eval.evaluation import loop
from fusion_eval.evaluation.batches import EvaluationLoader
from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.loop import evaluate_rows, to_device
from fusion_eval.taskpool.classification_step import ClassificationStep


def problem(items: int = 23) -> tuple[nn.Module, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    data = torch.randn(items, 5, generator=generator)
    return model, TensorDataset(data, torch.arange(items) % 3)


def test_rows_equal_a_bare_loop_and_the_mode_comes_back() -> None:
    model, data = problem()
    model.train()
    rows = evaluate_rows(
        model, EvaluationLoader("t", data, {"batch_size": 4}), ClassificationStep("t"), Devices(), False
    )
    assert model.training
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(x) for x, _ in DataLoader(data, 4)])
    assert rows is not None
    assert torch.equal(rows.columns["pred"], logits.argmax(-1))
    expected = nn.functional.cross_entropy(logits, data.tensors[1], reduction="none")
    assert torch.allclose(rows.columns["loss"], expected)


def test_chunking_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = problem()
    step = ClassificationStep("t", keep_probs=True)
    whole = evaluate_rows(model, EvaluationLoader("t", data, {"batch_size": 4}), step, Devices(), False)
    monkeypatch.setattr(loop, "_HELD_BYTES", 1)
    pieces = evaluate_rows(model, EvaluationLoader("t", data, {"batch_size": 4}), step, Devices(), False)
    assert whole is not None
    assert pieces is not None
    assert torch.equal(whole.ids, pieces.ids)
    for name, column in whole.columns.items():
        assert torch.equal(column, pieces.columns[name])


def test_nan_outputs_name_the_items() -> None:
    model, data = problem()
    data.tensors[0][7] = float("nan")
    data.tensors[0][12] = float("inf")
    with pytest.raises(EvaluationError, match=r"task 't': 2 of 23 outputs are NaN or infinite \(items 7, 12\)"):
        evaluate_rows(model, EvaluationLoader("t", data, {"batch_size": 4}), ClassificationStep("t"), Devices(), False)


def test_a_collate_function_that_drops_items_is_caught() -> None:
    model, data = problem()
    kwargs = {"batch_size": 4, "collate_fn": lambda rows: [torch.stack(c) for c in zip(*rows[:3], strict=True)]}
    with pytest.raises(EvaluationError, match="one output per item"):
        evaluate_rows(model, EvaluationLoader("t", data, kwargs), ClassificationStep("t"), Devices(), False)


def test_to_device_keeps_containers() -> None:
    batch = {"x": torch.ones(2), "pair": (torch.ones(1), ["text"]), "n": 3}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"].device.type == "meta"
    assert moved["pair"][0].device.type == "meta"
    assert moved["pair"][1] == ["text"]
    assert moved["n"] == 3


class Broken(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 13:
            raise KeyError("row 13")
        return torch.zeros(5), 0


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_what_a_data_set_raises_is_told_with_its_place(workers: int) -> None:
    loader = EvaluationLoader("t", Broken(), {"batch_size": 4, "num_workers": workers})
    with pytest.raises(
        DataError, match=r"task 't', reading after item 11: KeyError: 'row 13'\. Set HYDRA_FULL"
    ) as told:
        evaluate_rows(problem()[0], loader, ClassificationStep("t"), Devices(), False)
    assert isinstance(told.value.__cause__, KeyError)


def test_what_a_model_raises_is_told_with_its_items() -> None:
    loader = EvaluationLoader("t", TensorDataset(torch.zeros(6, 7), torch.zeros(6).long()), {"batch_size": 4})
    with pytest.raises(EvaluationError, match=r"task 't', items 0 to 3: RuntimeError: mat1 and mat2 shapes"):
        evaluate_rows(problem()[0], loader, ClassificationStep("t"), Devices(), False)


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    def __init__(self, items: int) -> None:
        self.items = items

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        return iter([(torch.full((5,), float(item)), item % 3) for item in range(self.items)])


def test_a_stream_of_unknown_length_with_a_progress_bar() -> None:
    rows = evaluate_rows(
        problem()[0], EvaluationLoader("t", Stream(10), {"batch_size": 4}), ClassificationStep("t"), Devices(), True
    )
    assert rows is not None
    assert rows.columns["target"].tolist() == [item % 3 for item in range(10)]


def test_an_empty_stream_is_refused() -> None:
    loader = EvaluationLoader("t", Stream(0), {"batch_size": 4})
    with pytest.raises(DataError, match=r"task 't': the data set has no items\. Check its path and split\."):
        evaluate_rows(problem()[0], loader, ClassificationStep("t"), Devices(), False)


class Layout(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = x[:, :3]
        return {"scalar": logits.sum(), "fewer": logits[1:], "complex": logits.to(torch.complex64)}[self.way]


@pytest.mark.parametrize("way", ["scalar", "fewer", "complex"])
def test_outputs_of_another_layout(way: str) -> None:
    loader = EvaluationLoader("t", problem()[1], {"batch_size": 4})
    with pytest.raises(EvaluationError, match=r"task 't': outputs of shape .* for 4 labels; expected real logits"):
        evaluate_rows(Layout(way), loader, ClassificationStep("t"), Devices(), False)
