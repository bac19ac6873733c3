"""Aggregations that know their own standard error: ratios of sums over documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from fusion_eval.errors import DataError, Fault


@final
@dataclass(frozen=True, slots=True)
class Ratio:
    """The sum of one quantity over the sum of another, such as precision: hits over answers "yes".

    Args:
        name: the metric.
        parts: (numerator, denominator) of a document.
        empty: what no document has where the denominator is 0.
    """

    name: str
    parts: Callable[[Any], tuple[float, float]]
    empty: str

    def __call__(self, items: Sequence[Any]) -> float:
        """The ratio.

        Raises:
            DataError: the denominator is 0.
        """
        top, bottom = self._sums(items)
        if not bottom.sum():
            raise DataError(Fault(f"metric {self.name}", f"no document {self.empty}", "at least one"))
        return float(top.sum() / bottom.sum())

    def stderr(self, items: Sequence[Any]) -> float | None:
        """By the delta method: the error of the mean of (top - ratio * bottom) / mean(bottom)."""
        top, bottom = self._sums(items)
        if len(items) < 2 or not bottom.sum():
            return None
        residual = (top - top.sum() / bottom.sum() * bottom) / bottom.mean()
        return float(residual.std(ddof=1) / np.sqrt(len(items)))

    def _sums(self, items: Sequence[Any]) -> tuple[Any, Any]:
        pairs = np.asarray([self.parts(item) for item in items], dtype=float).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]
