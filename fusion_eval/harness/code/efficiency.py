"""beyond@k: correct and fast programs, "Mercury" (arXiv 2402.07844)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusion_eval.errors import EvaluationError, Fault


def beyond(seconds: float | None, references: Sequence[float]) -> float:
    """Where a run time lies in the range of the reference solutions: 1 at the fastest, 0 at the slowest.

    Args:
        seconds: the mean run time of a correct program, None for one that failed.
        references: run times of the reference solutions.

    Raises:
        EvaluationError: no references.
    """
    if not references:
        raise EvaluationError(Fault("beyond@k", "no reference run times", "at least one"))
    if seconds is None:
        return 0.0
    low, high = min(references), max(references)
    return 1.0 if high == low else (high - min(max(seconds, low), high)) / (high - low)


def beyond_at_1(runs: Sequence[Sequence[float | None]], references: Sequence[Sequence[float]]) -> float:
    """The mean over problems of the mean over samples."""
    rows = [[beyond(run, known) for run in row] for row, known in zip(runs, references, strict=True)]
    return math.fsum(math.fsum(row) / len(row) for row in rows) / len(rows)
