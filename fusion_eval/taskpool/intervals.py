"""A mean over items with its standard error and 95 % interval."""

from __future__ import annotations

import math

from torch import Tensor

from fusion_eval.evaluation.rows import Column
from fusion_eval.report.values import Value

_Z = 1.959963984540054  # the normal distribution's 97.5 % point


def mean_value(column: Column, higher_is_better: bool) -> Value:
    """The mean of per-item scores: Wilson's interval for zeros and ones, the normal one otherwise.

    Wilson, J. Am. Stat. Assoc. 22 (1927): (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n).
    """
    scores = column.double() if isinstance(column, Tensor) else None
    values = scores.tolist() if scores is not None else [float(entry) for entry in column]
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1) if n > 1 else 0.0
    stderr = math.sqrt(variance / n) if n > 1 else None
    if all(value in (0.0, 1.0) for value in values):
        interval: tuple[float, float] | None = wilson(mean, n)
    else:
        interval = None if stderr is None else (mean - _Z * stderr, mean + _Z * stderr)
    return Value(mean, stderr, n, higher_is_better, interval)


def wilson(p: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion."""
    spread = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    centre, scale = p + _Z**2 / (2 * n), 1 + _Z**2 / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
