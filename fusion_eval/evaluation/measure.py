"""Metrics from rows, each computed once; what has no value is said, never counted as a number."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusion_eval.errors import DataError, EvaluationError, Fault
from fusion_eval.evaluation.columns import part_of, rebuilt
from fusion_eval.evaluation.features import FEATURES, load_features
from fusion_eval.evaluation.feeding import fed, feed_all, wants_probabilities
from fusion_eval.evaluation.rows import Column, Rows
from fusion_eval.evaluation.statistics import COUNTS, REASONS, STATES, label_totals, load_counts, load_states
from fusion_eval.task.battery import MetricUnavailable
from fusion_eval.task.task import Task

if TYPE_CHECKING:
    from torchmetrics import Metric

LOWER_IS_BETTER = frozenset({"hamming", "ter", "wer", "cer", "eed", "edit_distance", "ranking_loss", "coverage_error"})
"""Names of metrics that torchmetrics gives no direction, or whose direction depends on the name."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One model's metrics on one task.

    Args:
        values: numbers by name; a metric that gives several has several names.
        source: the battery's metric that gave each of them.
        directions: whether higher is better, or None where a metric has no direction.
        notes: what a reader must know: absent classes, metrics without a value and why, items that a mask left out.
        items: items that count.
    """

    values: Mapping[str, float]
    source: Mapping[str, str]
    directions: Mapping[str, bool | None]
    notes: tuple[str, ...] = ()
    items: int = 0


@dataclass(slots=True)
class _Sheet:
    values: dict[str, float] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    directions: dict[str, bool | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def measure(rows: Rows, task: Task, battery: Mapping[str, Metric], where: str) -> Measured:
    """Every metric of the battery on all rows.

    The metrics are left without state.

    Raises:
        DataError: there are no items.
        EvaluationError: a metric that cannot take the outputs, or no metric that has a value.
    """
    found = measure_some(rows, task, battery, where)
    if not found.values:
        raise EvaluationError(Fault(where, "no metric has a value", "at least one", "; ".join(found.notes)))
    return found


def measure_some(rows: Rows, task: Task, battery: Mapping[str, Metric], where: str) -> Measured:
    """As `measure`, for metrics beside others: none of them need have a value."""
    counted, masked = counted_rows(rows)
    if not len(counted):
        raise DataError(Fault(where, "no items", "at least one", "Check the data set, its split and the mask."))
    _check_counted(counted, battery, where)
    sheet = _Sheet()
    if masked:
        sheet.notes.append(f"{masked} of {len(rows)} items are masked out")
    sheet.notes.extend(f"{name}: {reason}" for name, reason in getattr(battery, "unavailable", {}).items())
    if task.update_fn is not None:
        _update_as_told(counted, task, battery, where)
    for name, metric in battery.items():
        with _noted(name, sheet, task, where):
            if task.update_fn is None:
                _fill(metric, name, counted, task)
            _enter(sheet, name, metric, metric.compute(), where)
        metric.reset()
    return Measured(sheet.values, sheet.source, sheet.directions, tuple(dict.fromkeys(sheet.notes)), len(counted))


def _check_counted(rows: Rows, battery: Mapping[str, Metric], where: str) -> None:
    """Refuse targets that are all ignored: torchmetrics would call that zero.

    Raises:
        DataError: no target counts.
    """
    kinds = {getattr(metric, "ignore_index", None) for metric in battery.values()}
    ignored = kinds.pop() if len(kinds) == 1 else None
    if not isinstance(ignored, int):
        return
    counts, target = rows.columns.get(COUNTS), rows.columns.get("target")
    none = isinstance(counts, Tensor) and not bool(counts.any())
    if none or (isinstance(target, Tensor) and not bool((target != ignored).any())):
        raise DataError(Fault(where, f"every target is {ignored}, which ignore_index leaves out", "targets that count"))


def check_battery(rows: Rows, task: Task, battery: Mapping[str, Metric], where: str) -> None:
    """Feed every metric some rows, so that one that cannot take them is found before much is evaluated.

    Raises:
        EvaluationError: the first metric that cannot.
    """
    counted, _ = counted_rows(rows)
    if not len(counted):
        return
    if task.update_fn is not None:
        _update_as_told(counted, task, battery, where)
    for name, metric in battery.items():
        if task.update_fn is None:
            with _noted(name, _Sheet(), task, where):
                _fill(metric, name, counted, task)
        metric.reset()


def counted_rows(rows: Rows) -> tuple[Rows, int]:
    """(the rows whose mask is true, how many are not)."""
    mask = rows.columns.get("mask")
    if not isinstance(mask, Tensor) or bool(mask.all()):
        return rows, 0
    index = torch.nonzero(mask).flatten()
    columns: dict[str, Column] = {name: part_of(column, index) for name, column in rows.columns.items()}
    return Rows(rows.ids[index], columns), len(rows) - len(index)


def _fill(metric: Metric, name: str, rows: Rows, task: Task) -> None:
    metric.reset()
    if COUNTS in rows.columns:
        load_counts(metric, _summed(rows.columns[COUNTS]))
    elif FEATURES + name in rows.columns:
        features = rows.columns[FEATURES + name]
        assert isinstance(features, Tensor)
        load_features(metric.cpu(), features)
    elif STATES + name in rows.columns:
        reason = next(filter(None, rows.columns[REASONS + name]), "")
        if reason:
            raise MetricUnavailable(reason)
        load_states(metric, _summed(rows.columns[STATES + name]))
    else:
        preds = rebuilt(rows.columns, "probs" if wants_probabilities(task, name) else "pred")
        if preds is None:
            raise MetricUnavailable("the model gives no probabilities")
        target = rebuilt(rows.columns, "target")
        counts = label_totals(metric, preds, target) if task.feed is None else None
        if counts is None:
            feed_all(task, metric, preds, target)
        else:
            load_counts(metric, counts)


def _summed(column: Column) -> Tensor:
    assert isinstance(column, Tensor)
    return column.double().sum(0)


def _update_as_told(rows: Rows, task: Task, battery: Mapping[str, Metric], where: str) -> None:
    for metric in battery.values():
        metric.reset()
    assert task.update_fn is not None
    with _noted("update_fn", _Sheet(), task, where):
        preds, probs, target = (rebuilt(rows.columns, name) for name in ("pred", "probs", "target"))
        task.update_fn(battery, preds, probs, target)


@contextmanager
def _noted(name: str, sheet: _Sheet, task: Task, where: str) -> Iterator[None]:
    """Warnings and missing values as notes, failures as one clear error."""
    random = torch.random.fork_rng(devices=[])  # metrics that draw random numbers draw the same every time
    with warnings.catch_warnings(record=True) as caught, random, fed(task, name, where):
        torch.default_generator.manual_seed(0)
        warnings.simplefilter("always")
        try:
            yield
        except MetricUnavailable as error:
            sheet.notes.append(f"{name}: no value, since {str(error).rstrip('.')}")
    sheet.notes.extend(f"{name}: {w.message}" for w in caught if issubclass(w.category, UserWarning))


def _enter(sheet: _Sheet, name: str, metric: Metric, result: Any, where: str) -> None:
    higher = metric.higher_is_better
    for key, number in _numbers(name, result, where):
        if key in sheet.values:
            do = "Rename one of the metrics."
            raise EvaluationError(Fault(f"{where}, metric '{name}'", f"a second value named '{key}'", do=do))
        if not math.isfinite(number):
            sheet.notes.append(f"{key}: undefined on these items")
            continue
        sheet.values[key], sheet.source[key] = number, name
        sheet.directions[key] = (False if key in LOWER_IS_BETTER else None) if higher is None else higher


def _numbers(name: str, result: Any, where: str) -> Sequence[tuple[str, float]]:
    """One number, several by name, or a vector as `name_0`, `name_1`, ...

    Raises:
        EvaluationError: a matrix, or something that is no number.
    """
    if isinstance(result, Mapping):
        return [pair for key, entry in result.items() for pair in _numbers(str(key), entry, where)]
    if isinstance(result, tuple) and len(result) == 1:
        return _numbers(name, result[0], where)
    if isinstance(result, tuple):
        return [pair for i, entry in enumerate(result) for pair in _numbers(f"{name}_{i}", entry, where)]
    if isinstance(result, Tensor) and result.numel() == 1:
        return [(name, float(result))]
    if isinstance(result, Tensor) and result.ndim == 1:
        return [(f"{name}_{i}", float(entry)) for i, entry in enumerate(result)]
    if isinstance(result, int | float):
        return [(name, float(result))]
    found = f"a result of shape {tuple(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"
    raise EvaluationError(
        Fault(
            f"{where}, metric '{name}'", found, "a number, numbers by name, or one per class", "Use an average of it."
        )
    )
