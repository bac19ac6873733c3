"""One model's rows on a task as its result: every metric with an interval, or with the reason why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fusion_eval.errors import StatisticsError
from fusion_eval.evaluation.measure import Measured, counted_rows, measure
from fusion_eval.evaluation.rows import Rows
from fusion_eval.forms.item_form import Form
from fusion_eval.forms.measured_forms import bounds_of, forms_of, interval_of_form
from fusion_eval.report.values import TaskResult, Value
from fusion_eval.stats.item_metric import ItemMetric
from fusion_eval.taskpool.measurement import Measurement

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import Metric

NO_FORM = "no interval, since the metric is no function of the items' weights that is known here"
NO_SPREAD = "no interval, since every resample of the items gives the same value"


def measured_task(chosen: Measurement, rows: Rows, partial: bool) -> TaskResult:
    """Every metric of a task, computed from all rows.

    Raises:
        DataError, EvaluationError: no items, no metric with a value, metrics that cannot take the outputs.
    """
    measured = measure(rows, chosen.task, chosen.make(), chosen.where)
    forms = forms_of(rows, measured, chosen.task, chosen.make())
    counted, _ = counted_rows(rows)
    values, notes = values_of(measured, forms, chosen.make(), counted.columns.get("cluster"))
    known = {name: form for name, form in forms.items() if form is not None}
    items = {"id": counted.ids, **counted.columns, **item_scores(known, len(counted))}
    return TaskResult(chosen.name, values, measured.items, partial, (*measured.notes, *notes), items, known)


def values_of(
    measured: Measured,
    forms: Mapping[str, Form | None],
    battery: Mapping[str, Metric],
    clusters: Tensor | list[Any] | None = None,
) -> tuple[dict[str, Value], list[str]]:
    """The measured numbers with their intervals over items, and why others have none."""
    values, notes = {}, []
    for name, number in measured.values.items():
        form, direction = forms.get(name), measured.directions[name]
        if form is None:
            values[name] = Value(number, n=measured.items, higher_is_better=direction)
            notes.append(f"{name}: {NO_FORM}")
            continue
        try:
            found = interval_of_form(form, clusters, bounds=bounds_of(battery[measured.source[name]]))
        except StatisticsError as error:
            values[name] = Value(number, n=measured.items, higher_is_better=direction)
            notes.append(f"{name}: no interval, since {error.faults[0]}")
            continue
        known = np.isfinite([found.low, found.high]).all() and found.low < found.high
        ends = (found.low, found.high) if known else None
        stderr = found.stderr if known and np.isfinite(found.stderr) else None
        value = form.value if isinstance(form, ItemMetric) else number  # under weights the form's is the weighted one
        values[name] = Value(value, stderr, measured.items, direction, ends)
        more = found.notes if known or not isinstance(form, ItemMetric) else (*found.notes, NO_SPREAD)
        notes += [note if note.startswith(f"{name}: ") else f"{name}: {note}" for note in more]
    return values, [note for note in dict.fromkeys(notes) if note not in measured.notes]


def item_scores(forms: Mapping[str, Form], items: int) -> dict[str, Any]:
    """The metrics that are means of one score per item, as columns; those of queries are no columns of documents."""
    return {name: form for name, form in forms.items() if not isinstance(form, ItemMetric) and len(form) == items}
