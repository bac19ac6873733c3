"""Scores by items out of the results of task pools, for models that were evaluated there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fusion_eval.errors import DataError, Fault, FusionEvalError, listed
from fusion_eval.evaluation.rows import Column, Rows
from fusion_eval.evaluation.statistics import COUNTS, STATES
from fusion_eval.forms.item_form import Form, Subject, item_form
from fusion_eval.report.values import TaskResult
from fusion_eval.stats.item_metric import ItemMetric, mean_metric
from fusion_eval.stats.scores import Scores
from fusion_eval.task.battery import OfferedBattery
from fusion_eval.task.registry import get_task

_NOT_SCORES = ("id", "pred", "target", "probs", "weight", "cluster")
_COLUMN_OF = {"accuracy": "correct"}
_OFFERING = ("classification", "segmentation", "binary", "multilabel", "regression", "image_quality", "audio")
_SAME = 1e-4


def scores_of(
    results: Mapping[str, TaskResult], metrics: Sequence[str] | None = None
) -> tuple[list[Scores], list[str]]:
    """The metrics of models on one task that can be compared by items, and why others cannot.

    Args:
        results: the task's result by model name.
        metrics: names of metrics; by default all that every model has.

    Raises:
        DataError: models that were evaluated on different items.
    """
    check_same_items(results)
    first = next(iter(results.values()))
    wanted = list(first.metrics) if metrics is None else list(metrics)
    scores, notes = [], []
    for name in wanted:
        if any(name not in result.metrics for result in results.values()):
            lacking = [model for model, result in results.items() if name not in result.metrics]
            notes.append(f"{name}: not compared, since it has no value for {listed(lacking)}")
            continue
        found = _scores(name, results)
        if found is None:
            notes.append(f"{name}: not compared, since its values have no form by items")
        else:
            scores.append(found)
    return scores, notes


def check_same_items(results: Mapping[str, TaskResult]) -> None:
    """Refuse models whose items differ: paired tests need the same items in the same order."""
    named = list(results.items())
    for name, result in named[1:]:
        mine, theirs = named[0][1], result
        same = mine.n == theirs.n and all(
            np.array_equal(as_array(mine.items[key]), as_array(theirs.items[key]))
            for key in ("id", "target", "doc_hash")
            if key in mine.items and key in theirs.items and not isinstance(mine.items[key], list)
        )
        if not same:
            found = f"'{name}' was evaluated on other items than '{named[0][0]}'"
            do = "Evaluate both with the same data set and limit."
            raise DataError(Fault(f"task '{result.name}'", found, "the same items in the same order", do))


def as_array(column: Any) -> Any:
    """A column as a numpy array."""
    return column.numpy() if hasattr(column, "numpy") else np.asarray(column)


def _scores(name: str, results: Mapping[str, TaskResult]) -> Scores | None:
    forms = [_form(name, result) for result in results.values()]
    direction = next(iter(results.values())).metrics[name].higher_is_better is not False
    values = np.array([[result.metrics[name].value] for result in results.values()])
    methods = tuple(results)
    sizes = {form.n_items if isinstance(form, ItemMetric) else len(form) for form in forms if form is not None}
    if any(form is None for form in forms) or len(sizes) != 1:
        return None
    items = sizes.pop()
    if all(isinstance(form, np.ndarray) for form in forms):
        table = np.array([[form] for form in forms], dtype=np.float64)
        return Scores(name, methods, table.mean(axis=2), table, None, direction, (0,), items)
    functions: Any = tuple(
        (form if isinstance(form, ItemMetric) else mean_metric(name, np.asarray(form), higher_is_better=direction),)
        for form in forms
    )
    return Scores(name, methods, values, None, functions, direction, (0,), items)


def _form(name: str, result: TaskResult) -> Form | None:
    if name in result.forms:
        return result.forms[name]  # type: ignore[no-any-return]
    column = result.items.get(name, result.items.get(_COLUMN_OF.get(name, "")))
    if column is not None and name not in _NOT_SCORES:
        scores = as_array(column)
        if scores.ndim == 1 and scores.dtype.kind in "biuf" and np.isfinite(scores.astype(np.float64)).all():
            numbers = scores.astype(np.float64)
            return numbers if _is(float(numbers.mean()), result.metrics[name].value) else None
    return _rebuilt(name, result) if "id" in result.items else None


def _rebuilt(name: str, result: TaskResult) -> Form | None:
    """The form of a metric that a task offers under this name, made of stored columns and checked against the value."""
    arrays = {key: as_array(column) for key, column in result.items.items() if not isinstance(column, list)}
    columns: dict[str, Column] = {
        key: torch.as_tensor(array) for key, array in arrays.items() if array.dtype.kind in "biuf" and key != "id"
    }
    rows, value = Rows(torch.arange(len(arrays["id"])), columns), result.metrics[name]
    for task in map(get_task, _OFFERING):
        if not isinstance(task.battery, OfferedBattery) or name not in task.battery.names:
            continue
        try:
            metric = task.battery.pick([name], _classes(columns))[name]
        except FusionEvalError:
            continue
        subject = Subject(name, metric, name, rows, task, value.value, value.higher_is_better is not False)
        form = (
            item_form(subject) if subject.preds is not None or COUNTS in columns or STATES + name in columns else None
        )
        if form is not None:
            return form
    return None


def _classes(columns: Mapping[str, Column]) -> int:
    """The number of classes that stored columns tell; at least two."""
    for name, parts in (("probs", 1), (COUNTS, 3)):
        column = columns.get(name)
        if isinstance(column, Tensor) and column.ndim == 2:
            return max(2, column.shape[1] // parts)
    labels = [columns[name] for name in ("pred", "target") if name in columns]
    largest = [int(label.max()) for label in labels if isinstance(label, Tensor) and label.numel()]
    return max(2, *(number + 1 for number in largest)) if largest else 2


def _is(found: float, value: float) -> bool:
    return math.isfinite(found) and abs(found - value) <= _SAME * max(1.0, abs(value))
