"""Scores of groups: means over their tasks, with pooled standard errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fusion_eval.harness.outcome import GroupOutcome, MetricValue, TaskOutcome
from fusion_eval.harness.plan import GroupPlan
from fusion_eval.harness.spec import GroupMetric


def aggregate_group(plan: GroupPlan, tasks: Mapping[str, TaskOutcome], compat: bool = False) -> GroupOutcome:
    """The values of `aggregate_metric_list` over all tasks below the group."""
    outcome = GroupOutcome(plan)
    leaves = [tasks[name] for name in plan.leaves() if name in tasks]
    for wanted in plan.spec.aggregate_metric_list:
        for pipeline in _pipelines(wanted, leaves):
            _aggregate(outcome, wanted, pipeline, leaves, compat)
    return outcome


def _pipelines(wanted: GroupMetric, leaves: Sequence[TaskOutcome]) -> Sequence[str]:
    if wanted.filter_list is not None:
        return wanted.filter_list
    return sorted({v.pipeline for task in leaves for v in task.values.values() if v.metric == wanted.metric})


def _aggregate(
    outcome: GroupOutcome, wanted: GroupMetric, pipeline: str, leaves: Sequence[TaskOutcome], compat: bool
) -> None:
    key = f"{wanted.metric},{pipeline}"
    having = [task for task in leaves if key in task.values]
    values = [task.values[key] for task in having]
    if len(having) < len(leaves):
        missing = [task.name for task in leaves if key not in task.values]
        outcome.notes.append(f"{key} is missing in {len(missing)} of {len(leaves)} tasks: {', '.join(missing[:5])}")
    if not values:
        return
    sizes = [max((v.n for v in task.values.values()), default=0) if compat else task.values[key].n for task in having]
    score = weighted_mean([v.value for v in values], sizes if wanted.weight_by_size else [1] * len(values))
    errors = [v.stderr for v in values if v.stderr is not None]
    error = None
    if len(errors) == len(values):
        error = pooled_stderr(errors, sizes) if wanted.weight_by_size else independent_stderr(errors)
    direction = values[0].higher_is_better
    outcome.values[key] = MetricValue(wanted.metric, pipeline, score, error, sum(sizes), direction)


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Sum of value times weight over the sum of weights."""
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def pooled_stderr(errors: Sequence[float], sizes: Sequence[int]) -> float | None:
    """The error of a mean over all documents: pooled variance over the number of documents."""
    total = sum(sizes)
    if total <= len(sizes):
        return None
    pooled = sum((n - 1) * n * e**2 for n, e in zip(sizes, errors, strict=True)) / (total - len(sizes))
    return math.sqrt(pooled / total)


def independent_stderr(errors: Sequence[float]) -> float:
    """The error of an unweighted mean over independent tasks."""
    return math.sqrt(sum(e**2 for e in errors)) / len(errors)
