"""A metric that is no mean of item scores, as a function of item weights.

Resampling items means weighting them, so one function (B, N) -> (B,) gives the value (all weights 1), the bootstrap
(multinomial weights) and the jackknife (weights 0 and 1). Metrics computed from sums over items are additive: they
keep one row of sufficient statistics per item and are exact and cheap under any weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from fusion_eval.errors import Fault, StatisticsError
from fusion_eval.stats.arrays import Floats, Ints

Statistics: TypeAlias = Any  # a dense (items, m) array or a scipy.sparse matrix of that shape


_STEP = 1e-6
_ROWS = 64


@final
@dataclass(frozen=True, slots=True)
class ItemMetric:
    """One model's metric on one data set.

    Args:
        name: the metric's name.
        n_items: the number of items N.
        of_weights: maps weights (B, N) to values (B,).
        take: the metric of some of the items, by index.
        higher_is_better: the metric's direction.
        cells: equal labels for items that are interchangeable, or None; lets the bootstrap draw cells instead of items.
        slopes: derivative of the value by every item's weight, or None; replaces `of_weights` for many items.
        notes: what a reader of the value must know, such as absent classes.
        influence: computes the slopes when they are wanted, or None; unlike `slopes` they do not replace anything.
    """

    name: str
    n_items: int
    of_weights: Callable[[Floats], Floats]
    take: Callable[[Ints], ItemMetric]
    higher_is_better: bool = True
    cells: Ints | None = None
    slopes: Floats | None = None
    notes: tuple[str, ...] = ()
    influence: Callable[[], Floats] | None = None

    @property
    def value(self) -> float:
        """The metric itself: every item with weight one."""
        return float(self.of_weights(np.ones((1, self.n_items)))[0])


def additive_metric(
    name: str,
    statistics: Statistics,
    value_of: Callable[[Floats], Floats],
    *,
    higher_is_better: bool = True,
    cells: Ints | None = None,
    notes: tuple[str, ...] = (),
) -> ItemMetric:
    """A metric computed from sums over items of per-item statistics (N, m) by `value_of`: (B, m) -> (B,)."""
    n_items = int(statistics.shape[0])
    if n_items == 0:
        raise StatisticsError(Fault(name, "no items", "at least one item"))

    def of_weights(weights: Floats) -> Floats:
        return value_of(np.asarray(weights @ statistics))

    def take(index: Ints) -> ItemMetric:
        part = cells[index] if cells is not None else None
        return additive_metric(
            name, statistics[index], value_of, higher_is_better=higher_is_better, cells=part, notes=notes
        )

    def influence() -> Floats:
        return _additive_slopes(statistics, value_of)

    return ItemMetric(name, n_items, of_weights, take, higher_is_better, cells, notes=notes, influence=influence)


def _additive_slopes(statistics: Statistics, value_of: Callable[[Floats], Floats]) -> Floats:
    """The value's derivative by every item's weight (N,): its gradient in the sums, by central differences."""
    sums = np.asarray(statistics.sum(axis=0), dtype=np.float64).ravel()
    steps = _STEP * np.maximum(np.abs(sums), 1.0)
    gradient = np.empty(len(sums))
    for start in range(0, len(sums), _ROWS):
        index = np.arange(start, min(start + _ROWS, len(sums)))
        moved = np.zeros((len(index), len(sums)))
        moved[index - start, index] = steps[index]
        gradient[index] = (value_of(sums + moved) - value_of(sums - moved)) / (2 * steps[index])
    return np.asarray(statistics @ gradient).ravel()


def mean_metric(name: str, scores: NDArray[Any], *, higher_is_better: bool = True) -> ItemMetric:
    """The mean of per-item scores in the same form, for mixing with metrics that are no mean."""
    table = np.column_stack([np.asarray(scores, dtype=np.float64), np.ones(len(scores))])
    return additive_metric(name, table, lambda sums: sums[:, 0] / sums[:, 1], higher_is_better=higher_is_better)
