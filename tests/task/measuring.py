"""A task measured on a model, as a program does it."""

from __future__ import annotations

from typing import Any

from torch import nn

from fusion_eval.evaluation.devices import Devices
from fusion_eval.evaluation.given import as_loader
from fusion_eval.evaluation.loop import evaluate_rows
from fusion_eval.evaluation.measure import Measured, measure
from fusion_eval.evaluation.rows import Rows
from fusion_eval.evaluation.task_step import TaskStep
from fusion_eval.task import Task, get_task


def rows_of(
    task: str | Task, model: nn.Module, data: Any, classes: int | None = None, ignore_index: int | None = None
) -> tuple[Rows, TaskStep]:
    """The rows of a task on a model, and the step that made them."""
    chosen = get_task(task)
    step = TaskStep("the task", chosen, chosen.battery(classes, ignore_index))
    rows = evaluate_rows(model, as_loader("the task", data, chosen.fields), step, Devices(), False)
    assert rows is not None
    return rows, step


def measured(
    task: str | Task, model: nn.Module, data: Any, classes: int | None = None, ignore_index: int | None = None
) -> Measured:
    """The metrics of a task on a model."""
    rows, step = rows_of(task, model, data, classes, ignore_index)
    return measure(rows, step.task, step.battery, step.where)
