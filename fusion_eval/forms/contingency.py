"""Agreement of groupings and association of labels by items: functions of the table that counts pairs of labels.

Rand and adjusted Rand (Hubert and Arabie 1985), mutual information and its normalised forms (Strehl and Ghosh 2002;
Rosenberg and Hirschberg 2007), Fowlkes and Mallows 1983, Cramer's V and Tschuprow's T with Bergsma's correction (2013),
Pearson's contingency coefficient, Theil's U (1970).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fusion_eval.stats.arrays import Floats
from fusion_eval.stats.item_metric import ItemMetric, additive_metric

if TYPE_CHECKING:
    from torchmetrics import Metric

_MOST_CELLS = 4_096
_ADJUSTED = "ExactAdjustedMutualInfo"
_STEP = 1e-3


def contingency_form(metric: Metric, name: str, preds: NDArray[Any], target: NDArray[Any]) -> ItemMetric | None:
    """The form of a metric of labels (N,) and (N,), or None where none is known or there are many labels."""
    kind = type(metric).__name__
    if (
        kind not in (*_FORMS, _ADJUSTED)
        or preds.ndim != 1
        or getattr(metric, "average_method", "arithmetic") != "arithmetic"
    ):
        return None
    rows, columns = (np.unique(labels, return_inverse=True)[1].reshape(-1) for labels in (preds, target))
    shape = (int(rows.max()) + 1, int(columns.max()) + 1)
    if shape[0] * shape[1] > _MOST_CELLS:
        return None
    cells = rows * shape[1] + columns
    table = sparse.csr_matrix((np.ones(len(cells)), (np.arange(len(cells)), cells)), (len(cells), shape[0] * shape[1]))
    corrected = bool(getattr(metric, "bias_correction", False))
    whole = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
    value_of = _adjusted_mutual(whole) if kind == _ADJUSTED else _FORMS[kind]

    def of_sums(sums: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(value_of(sums.reshape(-1, *shape), corrected))

    return additive_metric(name, table, of_sums, cells=cells)


def _plogp(counts: Floats) -> Floats:
    """Sum of p log p over the last axis, for counts."""
    share = counts / counts.sum(axis=-1, keepdims=True)
    return np.asarray((share * np.log(np.where(share > 0, share, 1.0))).sum(axis=-1))


def _entropies(table: Floats) -> tuple[Floats, Floats, Floats]:
    """(mutual information, entropy of the rows, entropy of the columns) of tables (B, R, C)."""
    rows, columns = -_plogp(table.sum(axis=2)), -_plogp(table.sum(axis=1))
    joint = -_plogp(table.reshape(len(table), -1))
    return rows + columns - joint, rows, columns


def _share(part: Floats, whole: Floats) -> Floats:
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), 1.0)


def _normalized(table: Floats, corrected: bool) -> Floats:
    mutual, rows, columns = _entropies(table)
    return _share(mutual, (rows + columns) / 2)


def _v_measure(table: Floats, corrected: bool) -> Floats:
    mutual, rows, columns = _entropies(table)
    one, two = _share(mutual, columns), _share(mutual, rows)
    return np.where(one + two > 0, 2 * one * two / np.where(one + two > 0, one + two, 1.0), 0.0)


def _adjusted_mutual(whole: Floats) -> Callable[[Floats, bool], Floats]:
    """Adjusted mutual information of tables like this one: the expectation is taken linear in the margins' shares.

    It changes little from resample to resample, by less than the reciprocal of the number of items.
    """
    from fusion_eval.task.metric.mutual import expected_mutual_information

    margins, count = (whole.sum(axis=1), whole.sum(axis=0)), float(whole.sum())
    expected = expected_mutual_information(*margins, count)
    slopes = []
    for side, sums in enumerate(margins):
        moved = [sums + _STEP * (np.arange(len(sums)) == i) for i in range(len(sums))]
        pairs = [(each, margins[1]) if side == 0 else (margins[0], each) for each in moved]
        slopes.append(np.array([(expected_mutual_information(*pair, count) - expected) / _STEP for pair in pairs]))

    def value_of(table: Floats, corrected: bool) -> Floats:
        mutual, rows, columns = _entropies(table)
        total = table.sum(axis=(1, 2))[:, None]
        shifts = [table.sum(axis=2 - side) / total * count - sums for side, sums in enumerate(margins)]
        chance = expected + shifts[0] @ slopes[0] + shifts[1] @ slopes[1]
        return _share(mutual - chance, (rows + columns) / 2 - chance)

    return value_of


def _pairs(counts: Floats, axes: tuple[int, ...]) -> Floats:
    return np.asarray((counts * (counts - 1) / 2).sum(axis=axes))


def _pair_counts(table: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Pairs of items together (in both, in the rows, in the columns, at all)."""
    total = table.sum(axis=(1, 2))
    in_rows, in_columns = _pairs(table.sum(axis=2), (1,)), _pairs(table.sum(axis=1), (1,))
    return _pairs(table, (1, 2)), in_rows, in_columns, total * (total - 1) / 2


def _adjusted_rand(table: Floats, corrected: bool) -> Floats:
    both, rows, columns, every = _pair_counts(table)
    expected = rows * columns / every
    return _share(both - expected, (rows + columns) / 2 - expected)


def _rand(table: Floats, corrected: bool) -> Floats:
    both, rows, columns, every = _pair_counts(table)
    return (every + 2 * both - rows - columns) / every


def _fowlkes_mallows(table: Floats, corrected: bool) -> Floats:
    both, rows, columns, _ = _pair_counts(table)
    return both / np.sqrt(rows * columns)


def _phi2(table: Floats, corrected: bool) -> tuple[Floats, Floats, Floats]:
    """(phi squared, rows that occur, columns that occur), with Bergsma's correction where wanted."""
    total = table.sum(axis=(1, 2))
    rows, columns = table.sum(axis=2), table.sum(axis=1)
    expected = rows[:, :, None] * columns[:, None, :] / total[:, None, None]
    phi2 = np.where(expected > 0, (table - expected) ** 2 / np.where(expected > 0, expected, 1.0), 0.0).sum(axis=(1, 2))
    phi2 = phi2 / total
    r, c = (rows > 0).sum(axis=1).astype(float), (columns > 0).sum(axis=1).astype(float)
    if not corrected:
        return phi2, r, c
    phi2 = np.maximum(0.0, phi2 - (r - 1) * (c - 1) / (total - 1))
    return phi2, r - (r - 1) ** 2 / (total - 1), c - (c - 1) ** 2 / (total - 1)


def _cramers_v(table: Floats, corrected: bool) -> Floats:
    phi2, r, c = _phi2(table, corrected)
    return np.clip(np.sqrt(phi2 / np.minimum(r - 1, c - 1)), 0, 1)


def _tschuprows_t(table: Floats, corrected: bool) -> Floats:
    phi2, r, c = _phi2(table, corrected)
    return np.clip(np.sqrt(phi2 / np.sqrt((r - 1) * (c - 1))), 0, 1)


def _contingency(table: Floats, corrected: bool) -> Floats:
    phi2, _, _ = _phi2(table, False)
    return np.sqrt(phi2 / (1 + phi2))


def _theils_u(table: Floats, corrected: bool) -> Floats:
    mutual, rows, _ = _entropies(table)
    return _share(mutual, rows)


_FORMS: Mapping[str, Callable[[Floats, bool], Floats]] = {
    "AdjustedRandScore": _adjusted_rand,
    "RandScore": _rand,
    "FowlkesMallowsIndex": _fowlkes_mallows,
    "MutualInfoScore": lambda table, _: _entropies(table)[0],
    "NormalizedMutualInfoScore": _normalized,
    "HomogeneityScore": lambda table, _: _share(_entropies(table)[0], _entropies(table)[2]),
    "CompletenessScore": lambda table, _: _share(_entropies(table)[0], _entropies(table)[1]),
    "VMeasureScore": _v_measure,
    "CramersV": _cramers_v,
    "TschuprowsT": _tschuprows_t,
    "PearsonsContingencyCoefficient": _contingency,
    "TheilsU": _theils_u,
}
