"""The table of a run: task x {base, expert, merged}, absolute and as a share of the expert."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusion_eval.report.values import ModelResult, TaskResult, Value, Z, mean_over_tasks

AVERAGE = "average"
_COLUMN_OF = {"accuracy": "correct"}

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Row:
    """One task, or the average over tasks, by one metric."""

    task: str
    base: Value | None
    expert: Value | None
    merged: Value | None
    share: Value | None
    n: int | None
    metric: str = ""


UNSCORED = "unscored"
"""The metric that counts items without a score; it stands for no quality of a model."""


def main_metric(models: Sequence[ModelResult]) -> str | None:
    """The first metric of the first task that has one besides the count of what could not be scored."""
    named = (metric for model in models for task in model.tasks for metric in task.metrics)
    return next((metric for metric in named if metric != UNSCORED), None)


def metric_of(models: Sequence[ModelResult], task: str) -> str:
    """The main metric of the run where the task has it, else the task's own first one."""
    found = [each for model in models for each in model.tasks if each.name == task]
    main = main_metric(models) or ""
    if any(main in each.metrics for each in found):
        return main
    return next((metric for each in found for metric in each.metrics if metric != UNSCORED), main)


def rows_of(models: Sequence[ModelResult]) -> tuple[Row, ...]:
    """One row per task by its main metric, and one for the average where several tasks share it.

    The share of the expert, merged / expert, has an interval where both were scored on the same items.
    """
    if main_metric(models) is None:
        return ()
    table = _Table(models)
    rows = [table.row(name) for name in table.names]
    shared = len({row.metric for row in rows}) == 1
    return (*rows, table.average(rows)) if len(rows) > 1 and shared else tuple(rows)


class _Table:
    """A run's results by task and column."""

    def __init__(self, models: Sequence[ModelResult]) -> None:
        self.names = list(dict.fromkeys(task.name for model in models for task in model.tasks))
        self.metrics = {name: metric_of(models, name) for name in self.names}
        self.shared = any(model.shared_items for model in models)
        roles = {model.role: model for model in reversed(models)}
        experts = {model.name: model for model in models if model.role == "expert"}
        self.results = {
            name: {
                "base": _task(roles.get("base"), name),
                "expert": _task(experts.get(name), name),
                "merged": _task(roles.get("merged"), name),
            }
            for name in self.names
        }

    def row(self, name: str) -> Row:
        """One task."""
        found, metric = self.results[name], self.metrics[name]
        base, expert, merged = (None if task is None else task.metrics.get(metric) for task in found.values())
        known = next((task.n for task in found.values() if task is not None and task.n), None)
        return Row(name, base, expert, merged, self._share(found, metric), known, metric)

    def average(self, rows: Sequence[Row]) -> Row:
        """The means over tasks of the columns that every task has."""
        base, expert, merged, share = (self._mean(rows, column) for column in ("base", "expert", "merged", "share"))
        return Row(AVERAGE, base, expert, merged, share, sum(row.n for row in rows if row.n) or None, rows[0].metric)

    def _share(self, found: Mapping[str, TaskResult | None], metric: str) -> Value | None:
        merged, expert = found["merged"], found["expert"]
        above = None if merged is None else merged.metrics.get(metric)
        below = None if expert is None else expert.metrics.get(metric)
        if above is None or below is None or below.value == 0 or not above.higher_is_better:
            return None
        ratio, parts = above.value / below.value, self._share_scores(found, metric)
        if parts is None or len(parts) < 2:
            return Value(ratio, n=above.n)
        stderr = float(parts.std(ddof=1)) / math.sqrt(len(parts))
        interval = (max(0.0, ratio - Z * stderr), ratio + Z * stderr) if stderr else None
        return Value(ratio, stderr, above.n, True, interval)

    def _share_scores(self, found: Mapping[str, TaskResult | None], metric: str) -> Scores | None:
        """Each item's part in the ratio r of two means: (m - r e) / mean(e), the delta method's influence values."""
        merged, expert = _scores(found["merged"], metric), _scores(found["expert"], metric)
        if merged is None or expert is None or len(merged) != len(expert) or expert.mean() == 0:
            return None
        parts: Scores = (merged - merged.mean() / expert.mean() * expert) / expert.mean()
        return parts

    def _mean(self, rows: Sequence[Row], column: str) -> Value | None:
        values = [getattr(row, column) for row in rows]
        if any(value is None for value in values):
            return None
        return mean_over_tasks(values, self._shared_error(column) if self.shared else None)

    def _shared_error(self, column: str) -> float | None:
        """The standard error of a mean over tasks whose items are the same things: one unit per item."""
        scores = [
            self._share_scores(found, self.metrics[name])
            if column == "share"
            else _scores(found[column], self.metrics[name])
            for name, found in self.results.items()
        ]
        present = [score for score in scores if score is not None]
        if len(present) < len(scores) or len({len(score) for score in present}) != 1 or len(present[0]) < 2:
            return None
        by_item = np.mean(present, axis=0)
        return float(by_item.std(ddof=1)) / math.sqrt(len(by_item))


def _scores(task: TaskResult | None, metric: str) -> Scores | None:
    if task is None:
        return None
    column = next((name for name in (_COLUMN_OF.get(metric, metric), metric) if name in task.items), None)
    if column is None:
        return None
    return np.asarray(task.items[column], dtype=np.float64)


def _task(model: ModelResult | None, name: str) -> TaskResult | None:
    return None if model is None else next((task for task in model.tasks if task.name == name), None)
