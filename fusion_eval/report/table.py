"""The table of a run: task x {base, expert, merged}, absolute and as a share of the expert."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fusion_eval.report.report import Report
from fusion_eval.report.values import ModelResult, TaskResult, Value

_Z = 1.959963984540054
_AVERAGE = "average"


@dataclass(frozen=True, slots=True)
class Row:
    """One task, or the average over tasks."""

    task: str
    base: Value | None
    expert: Value | None
    merged: Value | None
    share: Value | None
    n: int | None


def main_metric(models: Sequence[ModelResult]) -> str | None:
    """The first metric of the first task."""
    for model in models:
        for task in model.tasks:
            for metric in task.metrics:
                return metric
    return None


def rows_of(report: Report, metric: str | None = None) -> list[Row]:
    """One row per task and one for the average, of the given or the main metric."""
    metric = metric or main_metric(report.models)
    if metric is None:
        return []
    base, merged = report.model("base"), report.model("merged")
    experts = [model for model in report.models if model.role == "expert"]
    names = list(dict.fromkeys(task.name for model in report.models for task in model.tasks))
    rows = [_row(name, metric, _task(base, name), _own_expert(experts, name), _task(merged, name)) for name in names]
    return [*rows, _average_row(rows)] if len(rows) > 1 else rows


def share_of(merged: TaskResult, expert: TaskResult, metric: str) -> Value | None:
    """The merged model's metric divided by the expert's, with an interval from the paired items where there are any.

    The delta method for a ratio r of two means on the same items: se(r) = sd(m - r e) / (mean(e) sqrt(n)).
    """
    above, below = merged.metrics.get(metric), expert.metrics.get(metric)
    if above is None or below is None or below.value == 0 or not above.higher_is_better:
        return None
    ratio = above.value / below.value
    column = {"accuracy": "correct"}.get(metric, metric)
    if column not in merged.items or column not in expert.items or merged.n != expert.n or merged.n < 2:
        return Value(ratio, n=merged.n)
    difference = np.asarray(merged.items[column], float) - ratio * np.asarray(expert.items[column], float)
    stderr = float(difference.std(ddof=1)) / (abs(below.value) * math.sqrt(len(difference)))
    return Value(ratio, stderr, merged.n, True, (ratio - _Z * stderr, ratio + _Z * stderr))


def _row(name: str, metric: str, base: TaskResult | None, expert: TaskResult | None, merged: TaskResult | None) -> Row:
    share = share_of(merged, expert, metric) if merged is not None and expert is not None else None
    known = next((task.n for task in (merged, expert, base) if task is not None), None)
    return Row(name, _value(base, metric), _value(expert, metric), _value(merged, metric), share, known or None)


def _average_row(rows: Sequence[Row]) -> Row:
    means = [_mean([getattr(row, column) for row in rows]) for column in ("base", "expert", "merged", "share")]
    sizes = [row.n for row in rows if row.n]
    return Row(_AVERAGE, *means, sum(sizes) or None)


def _mean(values: Sequence[Value | None]) -> Value | None:
    present = [value for value in values if value is not None]
    if not present or len(present) != len(values):
        return None
    mean = math.fsum(value.value for value in present) / len(present)
    errors = [value.stderr for value in present if value.stderr is not None]
    if len(errors) != len(present):
        return Value(mean)
    stderr = math.sqrt(math.fsum(error**2 for error in errors)) / len(errors)
    return Value(mean, stderr, None, present[0].higher_is_better, (mean - _Z * stderr, mean + _Z * stderr))


def _task(model: ModelResult | None, name: str) -> TaskResult | None:
    return None if model is None else next((task for task in model.tasks if task.name == name), None)


def _own_expert(experts: Sequence[ModelResult], name: str) -> TaskResult | None:
    """The result of the expert that the task is named after."""
    return next((_task(expert, name) for expert in experts if expert.name == name), None)


def _value(task: TaskResult | None, metric: str) -> Value | None:
    return None if task is None else task.metrics.get(metric)
