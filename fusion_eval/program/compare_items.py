"""Scores by items out of the results of task pools, for models that were evaluated there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusion_eval.errors import DataError, Fault, listed
from fusion_eval.report.values import TaskResult
from fusion_eval.stats.arrays import Floats
from fusion_eval.stats.class_metrics import label_metric
from fusion_eval.stats.item_metric import ItemMetric
from fusion_eval.stats.scores import Scores

_NOT_SCORES = ("id", "pred", "target", "probs", "weight", "cluster")
_COLUMN_OF = {"accuracy": "correct"}
_OF_LABELS = ("f1", "precision", "recall")
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
            for key in ("id", "target")
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
    methods, items = tuple(results), next(iter(results.values())).n
    if all(isinstance(form, np.ndarray) for form in forms):
        table = np.array([[form] for form in forms], dtype=np.float64)
        return Scores(name, methods, table.mean(axis=2), table, None, direction, (0,), items)
    if all(isinstance(form, ItemMetric) for form in forms):
        functions: Any = tuple((form,) for form in forms)
        return Scores(name, methods, values, None, functions, direction, (0,), items)
    return None


def _form(name: str, result: TaskResult) -> Floats | ItemMetric | None:
    column = result.items.get(name, result.items.get(_COLUMN_OF.get(name, "")))
    value = result.metrics[name].value
    if column is not None and name not in _NOT_SCORES:
        scores = as_array(column)
        if scores.ndim == 1 and scores.dtype.kind in "biuf" and np.isfinite(scores.astype(np.float64)).all():
            numbers = scores.astype(np.float64)
            return numbers if _is(float(numbers.mean()), value) else None
    if name in _OF_LABELS and "pred" in result.items and "target" in result.items:
        return _of_labels(name, result, value)
    return None


def _of_labels(name: str, result: TaskResult, value: float) -> ItemMetric | None:
    preds, target = as_array(result.items["pred"]), as_array(result.items["target"])
    if preds.ndim != 1 or preds.dtype.kind not in "iu" or target.dtype.kind not in "iu":
        return None
    classes = int(max(preds.max(), target.max())) + 1
    metric = label_metric(name, preds.astype(np.int64), target.astype(np.int64), classes)
    return metric if _is(metric.value, value) else None


def _is(found: float, value: float) -> bool:
    return math.isfinite(found) and abs(found - value) <= _SAME * max(1.0, abs(value))
