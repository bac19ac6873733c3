"""Per-item rows as a task's result: means with errors, and every other metric computed once from all rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fusion_eval.errors import EvaluationError, Fault
from fusion_eval.evaluation.rows import Column, Rows
from fusion_eval.report.values import LOWER_IS_BETTER, TaskResult, Value, mean_over_tasks
from fusion_eval.stats import interval_of

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
    notes: list[str] = []
    for metric in names:
        column = ITEM_METRICS.get(metric)
        if metric not in battery and column in rows.columns:
            metrics[metric] = mean_value(rows.columns[column], metric not in LOWER_IS_BETTER)
        elif metric in battery:
            found = _from_battery(name, metric, battery[metric], rows, metric in prob_metrics, notes)
            metrics.update(found)
        else:
            notes.append(f"{metric}: not available, since the model gives no probabilities")
    return TaskResult(name, metrics, len(rows), partial, tuple(notes), {"id": rows.ids, **rows.columns})


def mean_value(column: Column, higher_is_better: bool) -> Value:
    """The mean of per-item scores with its error and interval: Wilson's for zeros and ones, Student's otherwise."""
    found = interval_of(np.asarray(column, dtype=np.float64))
    known = found.n_items > 1
    interval = (found.low, found.high) if known else None
    return Value(found.value, found.stderr if known else None, found.n_items, higher_is_better, interval)


def _from_battery(
    task: str, name: str, metric: Metric, rows: Rows, wants_probs: bool, notes: list[str]
) -> dict[str, Value]:
    if wants_probs and "probs" not in rows.columns:
        notes.append(f"{name}: not available, since the model gives no probabilities")
        return {}
    metric.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metric.update(rows.columns["probs" if wants_probs else "pred"], rows.columns["target"])
        result = metric.compute()
    metric.reset()
    notes.extend(f"{name}: {warning.message}" for warning in caught if issubclass(warning.category, UserWarning))
    values = {}
    for key, number in result.items() if isinstance(result, Mapping) else [(name, result)]:
        value = _as_float(task, key, number)
        if value is None:
            notes.append(f"{key}: undefined on these items")
            continue
        higher = metric.higher_is_better if metric.higher_is_better is not None else key not in LOWER_IS_BETTER
        values[key] = Value(value, n=len(rows), higher_is_better=higher)
    return values


def _as_float(task: str, name: str, number: Any) -> float | None:
    if isinstance(number, Tensor) and number.numel() != 1:
        raise EvaluationError(
            Fault(
                f"task '{task}', metric '{name}'",
                f"a result of shape {tuple(number.shape)}",
                "one number",
                "Use an averaging option of the metric, or torchmetrics.wrappers.ClasswiseWrapper.",
            )
        )
    value = float(number)
    return value if torch.isfinite(torch.tensor(value)) else None


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
