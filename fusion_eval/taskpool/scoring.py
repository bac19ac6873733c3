"""Per-item rows as a task's result: means with errors, and every other metric computed once from all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from fusion_eval.evaluation.measure import Measured, measure_some
from fusion_eval.evaluation.rows import Column, Rows
from fusion_eval.forms.item_form import Form
from fusion_eval.forms.measured_forms import forms_of
from fusion_eval.report.values import LOWER_IS_BETTER, TaskResult, Value, mean_over_tasks
from fusion_eval.stats import interval_of
from fusion_eval.task.predict import ArgmaxPredict
from fusion_eval.task.task import Task
from fusion_eval.taskpool.measured_task import values_of

if TYPE_CHECKING:
    from torchmetrics import Metric

ITEM_METRICS = {"accuracy": "correct", "loss": "loss"}
"""Metrics that are means of a per-item column."""


def score(
    name: str,
    rows: Rows,
    names: Sequence[str],
    battery: Mapping[str, Metric],
    prob_metrics: frozenset[str],
    partial: bool,
) -> TaskResult:
    """The named metrics of a task.

    Args:
        name: the task.
        rows: all items' rows.
        names: metrics in the order of the report; those of `ITEM_METRICS` are means of columns.
        battery: fresh torchmetrics metrics for the other names.
        prob_metrics: metrics fed with probabilities instead of predictions.
        partial: whether a limit left items out.
    """
    metrics: dict[str, Value] = {}
    task = Task(lambda num_classes, ignore_index=None: dict(battery), ArgmaxPredict(), prob_metrics)
    measured, values, forms, notes = _measured(name, rows, battery, task)
    for metric in names:
        column = ITEM_METRICS.get(metric)
        if metric not in battery and column in rows.columns:
            metrics[metric] = mean_value(rows.columns[column], metric not in LOWER_IS_BETTER)
        elif metric in battery:
            assert measured is not None
            metrics.update({key: value for key, value in values.items() if measured.source[key] == metric})
        else:
            notes.append(f"{metric}: not available, since the model gives no probabilities")
    return TaskResult(name, metrics, len(rows), partial, tuple(notes), {"id": rows.ids, **rows.columns}, forms)


def mean_value(column: Column, higher_is_better: bool) -> Value:
    """The mean of per-item scores with its error and interval: Wilson's for zeros and ones, Student's otherwise."""
    found = interval_of(np.asarray(column, dtype=np.float64))
    known = found.n_items > 1
    interval = (found.low, found.high) if known else None
    return Value(found.value, found.stderr if known else None, found.n_items, higher_is_better, interval)


def _measured(
    name: str, rows: Rows, battery: Mapping[str, Metric], task: Task
) -> tuple[Measured | None, dict[str, Value], dict[str, Form], list[str]]:
    """(what was computed of the battery, its values with intervals, its forms by items, notes)."""
    if not battery:
        return None, {}, {}, []
    measured = measure_some(rows, task, battery, f"task '{name}'")
    forms = forms_of(rows, measured, task, battery)
    values, notes = values_of(measured, forms, battery)
    known = {metric: form for metric, form in forms.items() if form is not None}
    return measured, values, known, [*measured.notes, *notes]


def averages_over_shared_items(tasks: Sequence[TaskResult]) -> dict[str, Value]:
    """Averages over tasks of metrics that are means of items, when item i is the same thing in every task.

    The unit of the error is the item: se = sd over items of the item's mean over tasks / sqrt(items).
    """
    averages: dict[str, Value] = {}
    for metric, column in ITEM_METRICS.items():
        columns = [task.items[column] for task in tasks if metric in task.metrics and column in task.items]
        if len(columns) < max(len(tasks), 1) or len({len(scores) for scores in columns}) != 1 or len(columns[0]) < 2:
            continue
        by_item = torch.stack([scores.double() for scores in columns]).mean(0)
        stderr = float(by_item.std() / len(by_item) ** 0.5)
        averages[metric] = mean_over_tasks([task.metrics[metric] for task in tasks], stderr)
    return averages
