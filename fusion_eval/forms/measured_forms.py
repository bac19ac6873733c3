"""The forms by items of everything that was measured on a model, and the interval of one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fusion_eval.evaluation.measure import Measured, counted_rows
from fusion_eval.evaluation.rows import Rows
from fusion_eval.forms.item_form import Form, Subject, item_form
from fusion_eval.forms.weighted import weighted_form
from fusion_eval.stats.bootstrap import interval_of_metric
from fusion_eval.stats.intervals import Interval, interval_of
from fusion_eval.stats.item_metric import ItemMetric
from fusion_eval.task.task import Task

if TYPE_CHECKING:
    from torchmetrics import Metric

_RESAMPLES = 1_000
_MANY_ITEMS = 1_000


def forms_of(rows: Rows, measured: Measured, task: Task, battery: Mapping[str, Metric]) -> dict[str, Form | None]:
    """Every reported number by items, weighted where the rows have weights; None where it has no such form.

    Args:
        rows: all rows, also those that a mask leaves out.
        measured: what was computed from them.
        task: the task.
        battery: its metrics, without state.

    Raises:
        DataError: weights that are negative, not finite or all zero.
    """
    counted, _ = counted_rows(rows)
    weights = counted.columns.get("weight")
    forms: dict[str, Form | None] = {}
    for name, value in measured.values.items():
        source = measured.source[name]
        better = measured.directions[name] is not False
        form = item_form(Subject(name, battery[source], source, counted, task, value, better))
        forms[name] = form if weights is None else weighted_form(name, form, weights, better)
    return forms


def interval_of_form(
    form: Form, clusters: Any = None, level: float = 0.95, *, bounds: tuple[float | None, float | None] = (None, None)
) -> Interval:
    """One model's interval over items, or over clusters of items.

    Means get `interval_of`. Other metrics get the percentile bootstrap, or the delta method where items are many, on
    the logit scale for metrics between 0 and 1, so that the interval stays there.

    Args:
        form: the metric by items.
        clusters: a label per item, or None.
        level: the confidence level.
        bounds: the smallest and the largest value that the metric can have, where it has such.
    """
    if not isinstance(form, ItemMetric):
        return interval_of(form, clusters, level)
    if form.n_items <= _MANY_ITEMS:
        return interval_of_metric(form, clusters, level, method="percentile", resamples=_RESAMPLES)
    found = interval_of_metric(form, clusters, level, method="delta")
    return _on_logits(found) if bounds == (0.0, 1.0) and 0 < found.value < 1 else found


def _on_logits(found: Interval) -> Interval:
    """The same standard error's interval of log(v / (1 - v)), mapped back."""
    value = found.value
    half = (found.high - found.low) / 2 / (value * (1 - value))
    middle = math.log(value / (1 - value))
    low, high = (1 / (1 + math.exp(-(middle + side * half))) for side in (-1, 1))
    return replace(found, low=low, high=high)


def bounds_of(metric: Metric) -> tuple[float | None, float | None]:
    """The smallest and the largest value that a metric says it can have."""
    return getattr(metric, "plot_lower_bound", None), getattr(metric, "plot_upper_bound", None)
