"""Any number of ranks, also with nothing to do, gives the values of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.given import as_loader
from fusion_eval.evaluation.loop import local_rows
from fusion_eval.evaluation.measure import Measured, measure
from fusion_eval.evaluation.rows import Rows
from fusion_eval.evaluation.task_step import TaskStep
from fusion_eval.task import get_task
from tests.task.tables import Listed, Table, loader, noise

N = 11


def detector() -> tuple[nn.Module, Any]:
    truth = [{"boxes": torch.tensor([[0.0, 0, 9, 9 + i]]), "labels": torch.tensor([i % 2])} for i in range(N)]
    output = [{**t, "boxes": t["boxes"] + noise(i, (1, 4)), "scores": torch.rand(1)} for i, t in enumerate(truth)]
    return Listed(output), [(list(range(i, min(i + 4, N))), truth[i : i + 4]) for i in range(0, N, 4)]


CASES = {
    "classification": (Table(noise(0, (N, 3))), loader(torch.arange(N) % 3, 4), 3),
    "segmentation": (Table(noise(0, (N, 3, 6, 6))), loader((noise(1, (N, 6, 6)) > 0).long(), 4), 3),
    "regression": (Table(noise(0, (N,))), loader(noise(1, (N,)), 4), None),
    "image_quality": (Table(noise(0, (N, 1, 16, 16)).sigmoid()), loader(noise(1, (N, 1, 16, 16)).sigmoid(), 4), None),
    "detection": (*detector(), None),
}


def on(task: str, world: int) -> Measured:
    model, data, classes = CASES[task]
    chosen = get_task(task)
    parts = []
    for rank in range(world):
        step = TaskStep(task, chosen, chosen.battery(classes))
        parts.append(local_rows(model, as_loader(task, data, rank=rank, world=world), step, Devices(), False))
    rows = Rows.join(parts)
    assert rows.ids.tolist() == list(range(N))
    return measure(rows, chosen, chosen.battery(classes), task)


@pytest.mark.parametrize("task", list(CASES))
@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_do_not_change_a_bit(task: str, world: int) -> None:
    assert on(task, world) == on(task, 1)
