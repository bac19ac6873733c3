"""Uneven shards on two and three real ranks (gloo): the ways in which a distributed evaluation usually goes wrong.

Each case runs on every world size and must give what one process gives: padded and repeated items, dropped batches,
means of rank means, ranks without any item, list states of unequal length, BatchNorm buffers, objects of any shape.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fusion_eval.errors import DataError, EvaluationError, Fault, FusionEvalError
from fusion_eval.evaluation.batches import EvaluationLoader
from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.gathering import gathered
from fusion_eval.evaluation.loop import evaluate_rows
from fusion_eval.evaluation.measure import measure
from fusion_eval.evaluation.rows import Rows
from fusion_eval.evaluation.task_step import TaskStep
from fusion_eval.task import get_task

pytestmark = pytest.mark.dist


def points(items: int, classes: int = 3) -> TensorDataset:
    """Logits as inputs; item 0, which a padding sampler would repeat, is wrong."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(items) % classes
    logits = 3 * nn.functional.one_hot(labels, classes).float() + torch.randn(items, classes, generator=generator)
    logits[0] = 3 * nn.functional.one_hot((labels[0] + 1) % classes, classes).float()
    return TensorDataset(logits, labels)


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


class Boxes(Dataset[tuple[Tensor, dict[str, Tensor]]]):
    """Five pictures with one to three boxes each: mAP gathers per picture and aborts on uneven ranks."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(index)
        corner = torch.rand(index % 3 + 1, 2, generator=generator) * 50
        boxes = torch.cat([corner, corner + 20], 1)
        return torch.tensor(float(index)), {"boxes": boxes, "labels": torch.arange(len(boxes)) % 2}


class Detector(nn.Module):
    def forward(self, pictures: Any) -> list[dict[str, Tensor]]:
        found = []
        for picture in pictures:
            target = Boxes()[int(picture)][1]
            shift = 5.0 if int(picture) == 0 else 0.5
            scores = torch.linspace(0.9, 0.5, len(target["labels"]))
            found.append({"boxes": target["boxes"] + shift, "labels": target["labels"], "scores": scores})
        return found


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """A data set of unknown length."""

    def __iter__(self) -> Any:
        return iter(points(11))


def evaluated(
    devices: Devices,
    task: str,
    model: nn.Module,
    data: Dataset[Any],
    batch: int,
    classes: int | None = 3,
    **kwargs: Any,
) -> Any:
    loader = EvaluationLoader("t", data, {"batch_size": batch, **kwargs}, rank=devices.rank, world=devices.world)
    chosen = get_task(task)
    step = TaskStep("t", chosen, chosen.battery(classes))
    rows = evaluate_rows(model, loader, step, devices, False)
    if rows is None:
        return None
    found = measure(rows, chosen, step.battery, step.where)
    return dict(found.values), found.items, rows.ids.tolist()


def unzipped(rows: list[Any]) -> tuple[list[Any], list[Any]]:
    return [row[0] for row in rows], [row[1] for row in rows]


def objects(devices: Devices) -> Any:
    """Ranks with rows of objects, and ranks without any."""
    mine = [0, 1, 2] if devices.rank == 0 else []
    rows = Rows(torch.tensor(mine, dtype=torch.int64), {"boxes": [torch.ones(index, 4) for index in mine]})
    whole = gathered(devices, rows, 3, "t")
    return None if whole is None else [len(box) for box in whole.columns["boxes"]]


CASES: dict[str, Callable[[Devices], Any]] = {
    "eleven items": lambda d: evaluated(d, "classification", nn.Identity(), points(11), 4),
    "719 items": lambda d: evaluated(d, "classification", nn.Identity(), points(719), 64),
    "one item, so all ranks but one are empty": lambda d: evaluated(d, "classification", nn.Identity(), points(1), 4),
    "fewer batches than ranks": lambda d: evaluated(d, "classification", nn.Identity(), points(5), 4),
    "BatchNorm, 3 batches": lambda d: evaluated(d, "classification", normed(), points(6), 2),
    "BatchNorm, 1 batch": lambda d: evaluated(d, "classification", normed(), points(3), 4),
    "a stream of unknown length": lambda d: evaluated(d, "classification", nn.Identity(), Stream(), 4),
    "objects of any shape": objects,
}


def rank_main(case: str, rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        outcome: Any = ALL[case](Devices(torch.device("cpu"), rank, world))
    except FusionEvalError as error:
        outcome = error
    Path(folder, str(rank)).write_bytes(pickle.dumps(outcome))
    dist.destroy_process_group()


def on_ranks(case: str, world: int, folder: Path) -> list[Any]:
    """What each rank got."""
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=rank_main, args=(case, rank, world, str(folder)), daemon=True) for rank in range(world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("case", list(CASES))
def test_ranks_give_what_one_process_gives(case: str, world: int, tmp_path: Path) -> None:
    assert on_ranks(case, world, tmp_path)[0] == CASES[case](Devices())


@pytest.mark.parametrize("world", [2, 3])
def test_detection_on_uneven_ranks(world: int, tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    alone = detection(Devices())
    assert on_ranks("detection", world, tmp_path)[0] == alone
    assert 0 < alone[0]["map"] < 1


def detection(devices: Devices) -> Any:
    return evaluated(devices, "detection", Detector(), Boxes(), 1, None, collate_fn=unzipped)


def nan_on_the_last_rank(devices: Devices) -> Any:
    data = points(11)
    data.tensors[0][9] = float("nan")
    return evaluated(devices, "classification", nn.Identity(), data, 4)


def a_bug_on_one_rank(devices: Devices) -> Any:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 3:
                raise ZeroDivisionError("a bug of the model's")
            return x

    return evaluated(devices, "classification", Broken(), points(11), 4)


def a_loader_that_is_not_dealt(devices: Devices) -> Any:
    rows = Rows(torch.arange(11), {"x": torch.arange(11.0)})
    return gathered(devices, rows, 11, "task 't'")


ALL = {
    **CASES,
    "detection": detection,
    "nan": nan_on_the_last_rank,
    "bug": a_bug_on_one_rank,
    "not dealt": a_loader_that_is_not_dealt,
}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("nan", "items 9"),
        ("bug", "ZeroDivisionError: a bug of the model's"),
        ("not dealt", "22 rows for 11 items; missing: none; repeated: 0, 1, 2, 3, 4 and 6 more"),
    ],
)
def test_an_error_of_one_rank_is_raised_on_all(case: str, message: str, tmp_path: Path) -> None:
    found = on_ranks(case, 2, tmp_path)
    assert all(isinstance(outcome, FusionEvalError) for outcome in found)
    assert all(message in str(outcome) for outcome in found)


def test_errors_travel_between_processes() -> None:
    error = DataError(Fault("w", "f", "e", "d"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "w: f; expected e. d"
    assert pickle.loads(pickle.dumps(EvaluationError("text"))).faults == (Fault("", "text"),)
