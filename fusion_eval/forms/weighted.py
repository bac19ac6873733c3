"""Metrics of items that do not count alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusion_eval.errors import DataError, Fault
from fusion_eval.stats.arrays import Floats
from fusion_eval.stats.item_metric import ItemMetric, mean_metric


def weighted_form(
    name: str, form: Floats | ItemMetric | None, weights: Any, higher_is_better: bool
) -> ItemMetric | None:
    """The metric under item weights (N,), or None where it has no form by items.

    Raises:
        DataError: weights that are negative, not finite or all zero.
    """
    numbers = _weights(weights)
    if form is None:
        return None
    if not isinstance(form, ItemMetric):
        form = mean_metric(name, form, higher_is_better=higher_is_better)
    return _weighted(form, numbers) if form.n_items == len(numbers) else None


def _weighted(form: ItemMetric, weights: Floats) -> ItemMetric:
    return ItemMetric(
        form.name,
        form.n_items,
        lambda resampled: form.of_weights(resampled * weights),
        lambda index: _weighted(form.take(index), weights[index]),
        form.higher_is_better,
        notes=form.notes,
    )


def _weights(weights: Any) -> Floats:
    given: Sequence[Any] = weights.tolist() if hasattr(weights, "tolist") else weights
    numbers = np.asarray(given, dtype=np.float64)
    if numbers.ndim != 1 or not np.isfinite(numbers).all() or (numbers < 0).any() or not numbers.any():
        found = f"shape {numbers.shape}, smallest {numbers.min():g}, sum {numbers.sum():g}"
        raise DataError(Fault("the batches' weights", found, "one finite weight >= 0 per item, not all zero"))
    return numbers
