"""One row per method and metric: value, error, interval and rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from fusion_eval.stats.bootstrap import percentile_interval
from fusion_eval.stats.comparison import BETTER, WORSE, Comparison
from fusion_eval.stats.effects import is_constant
from fusion_eval.stats.intervals import Interval, interval_of, standard_error, student_t
from fusion_eval.stats.pairs import Evidence
from fusion_eval.stats.ranking import group_letters, rank_intervals, ranks_of, tie_groups

_NONE = "none: one run, no scores by item"


@final
@dataclass(frozen=True, slots=True)
class MethodSummary:
    """A method's standing on one metric.

    Args:
        method: the method.
        metric: the metric.
        mean: the metric's mean over runs.
        ci_low: lower end of its interval: over runs where there are several, else over items.
        ci_high: upper end.
        stderr: the standard error that belongs to the interval.
        interval: how the interval was made.
        item_ci_low: lower end of the interval over items, runs averaged; NaN without items.
        item_ci_high: upper end.
        rank: 1 for the best mean.
        rank_low: the best rank that the corrected verdicts leave open; None unless all pairs were compared.
        rank_high: the worst.
        group: methods that share a letter were not shown to differ.
        notes: what a reader must know.
    """

    method: str
    metric: str
    mean: float
    ci_low: float
    ci_high: float
    stderr: float
    interval: str
    item_ci_low: float
    item_ci_high: float
    rank: float
    rank_low: int | None = None
    rank_high: int | None = None
    group: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        ends = "no interval" if math.isnan(self.ci_low) else f"{self.ci_low:.4g} to {self.ci_high:.4g}"
        return f"{self.metric}: {self.method} {self.mean:.4g} ({ends})."


def summaries_of(evidence: Evidence, comparisons: Sequence[Comparison]) -> list[MethodSummary]:
    """The summary of every method on one metric, in the methods' order."""
    scores = evidence.scores
    ranks = ranks_of(scores.values.mean(axis=1), higher_is_better=scores.higher_is_better)
    standing = _standing(evidence, comparisons, ranks.tolist())
    return [_summary(evidence, m, float(ranks[m]), standing[m]) for m in range(len(scores.methods))]


def _summary(evidence: Evidence, m: int, rank: float, standing: tuple[int | None, int | None, str]) -> MethodSummary:
    scores = evidence.scores
    items = _item_interval(evidence, m)
    low, high, stderr, how, notes = _over_runs(evidence, m)
    if scores.n_runs == 1 and items is not None:
        low, high, stderr, how, notes = items.low, items.high, items.stderr, items.method, items.notes
    return MethodSummary(
        method=scores.methods[m],
        metric=scores.metric,
        mean=float(scores.values[m].mean()),
        ci_low=low,
        ci_high=high,
        stderr=stderr,
        interval=how,
        item_ci_low=math.nan if items is None else items.low,
        item_ci_high=math.nan if items is None else items.high,
        rank=rank,
        rank_low=standing[0],
        rank_high=standing[1],
        group=standing[2],
        notes=notes,
    )


def _over_runs(evidence: Evidence, m: int) -> tuple[float, float, float, str, tuple[str, ...]]:
    values = evidence.scores.values[m]
    mean = float(values.mean())
    if len(values) == 1:
        return math.nan, math.nan, math.nan, _NONE, ("one run without per-item scores: no interval",)
    if is_constant(values):
        return mean, mean, 0.0, "t over runs", (f"all {len(values)} runs scored the same",)
    stderr = standard_error(values)
    low, high = student_t(mean, stderr, len(values) - 1, evidence.settings.level)
    return low, high, stderr, "t over runs", ()


def _item_interval(evidence: Evidence, m: int) -> Interval | None:
    scores, level = evidence.scores, evidence.settings.level
    if scores.items is not None:
        return interval_of(scores.items[m].mean(axis=0), evidence.codes, level)
    if evidence.draws is None:
        return None
    draws = evidence.draws[:, m].mean(axis=1)
    low, high = percentile_interval(draws, level)
    stderr, mean = float(np.nanstd(draws, ddof=1)), float(scores.values[m].mean())
    clusters = None if evidence.codes is None else evidence.n_units
    return Interval(mean, stderr, low, high, level, "percentile bootstrap", scores.n_items, clusters)


def _standing(
    evidence: Evidence, comparisons: Sequence[Comparison], ranks: list[float]
) -> list[tuple[int | None, int | None, str]]:
    count = len(evidence.scores.methods)
    if evidence.settings.reference is not None and count > 2:
        return [(None, None, "")] * count
    beats = np.zeros((count, count), dtype=bool)
    position = {name: i for i, name in enumerate(evidence.scores.methods)}
    for found in comparisons:
        a, b = position[found.method_a], position[found.method_b]
        beats[a, b] = found.verdict == BETTER
        beats[b, a] = found.verdict == WORSE
    order = sorted(range(count), key=lambda m: (ranks[m], m))
    letters = group_letters(count, tie_groups(order, beats | beats.T))
    return [(low, high, letters[m]) for m, (low, high) in enumerate(rank_intervals(beats))]
