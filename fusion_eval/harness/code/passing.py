"""pass@k: the unbiased estimate, its interval over problems, and what was not scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fusion_eval.errors import EvaluationError, Fault, listed
from fusion_eval.sandbox import Status, Verdict
from fusion_eval.stats import Interval, bootstrap_interval, interval_of

KS = (1, 10, 100)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The chance that at least one of k samples drawn without replacement from n is correct.

    "Evaluating Large Language Models Trained on Code" (arXiv 2107.03374), equation 1: 1 - C(n-c, k) / C(n, k).

    Raises:
        EvaluationError: k above n, or counts that make no sense.
    """
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise EvaluationError(Fault("pass@k", f"n={n}, correct={correct}, k={k}", "0 <= correct <= n and 1 <= k <= n"))
    if n - correct < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - correct + 1, n + 1))


@dataclass(frozen=True, slots=True)
class Counts:
    """Samples of one problem: how many were scored, how many of them passed, how many could not be scored."""

    scored: int
    passed: int
    unscored: int = 0


def count(verdicts: Sequence[Verdict]) -> Counts:
    """The counts of one problem."""
    scored = [verdict for verdict in verdicts if verdict.scored]
    return Counts(len(scored), sum(verdict.passed for verdict in scored), len(verdicts) - len(scored))


def values_at(k: int, counts: Sequence[Counts]) -> list[float]:
    """pass@k of every problem."""
    return [pass_at_k(row.scored, row.passed, k) for row in counts]


def estimates(counts: Sequence[Counts], ks: Sequence[int] = KS) -> dict[str, float]:
    """pass@k for every k that every problem has enough scored samples for.

    Raises:
        EvaluationError: no problems, or problems without a scored sample (their score would silently be left out).
    """
    empty = [str(number) for number, row in enumerate(counts) if row.scored == 0]
    if empty or not counts:
        found = f"problems without a scored sample: {listed(empty)}" if counts else "no problems"
        raise EvaluationError(Fault("pass@k", found, "at least one scored sample for each problem"))
    least = min(row.scored for row in counts)
    return {f"pass@{k}": math.fsum(values_at(k, counts)) / len(counts) for k in ks if k <= least}


def interval(counts: Sequence[Counts], k: int, level: float = 0.95) -> Interval:
    """pass@k with its interval over problems: Wilson for one sample each, else a bootstrap over problems."""
    values = values_at(k, counts)
    if all(row.scored == 1 for row in counts) or len(set(values)) == 1:
        return interval_of(values, level=level)
    return bootstrap_interval(values, level=level)


def tally(rows: Sequence[Sequence[Verdict]]) -> dict[str, int]:
    """How many samples ended in each way; ways that did not occur are left out."""
    found: dict[str, int] = {}
    for status in Status:
        number = sum(verdict.status is status for row in rows for verdict in row)
        if number:
            found[status.value] = number
    return found
