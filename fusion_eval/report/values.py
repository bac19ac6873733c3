"""What an evaluation yields: values with their uncertainty, by task and by model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Z = 1.959963984540054
"""The normal distribution's 97.5 % point."""

LOWER_IS_BETTER = frozenset(
    {"loss", "nll", "perplexity", "bits_per_byte", "ece", "brier", "mse", "mae", "rmse", "error", "wer", "ter", "cer"}
)


@dataclass(frozen=True, slots=True)
class Value:
    """A measured number.

    Args:
        value: the number; never NaN (a metric that is undefined is left out, with a note).
        stderr: its standard error over items, or None where none is known.
        n: how many items it is computed from, or None where unknown.
        higher_is_better: the metric's direction, or None where it has none.
        interval: a 95 % interval, or None.
    """

    value: float
    stderr: float | None = None
    n: int | None = None
    higher_is_better: bool | None = True
    interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"a Value is finite, not {self.value}")


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The metrics of one model on one task.

    Args:
        name: the task.
        metrics: values by metric name; the first is the task's main metric.
        n: items evaluated.
        partial: whether a limit left items out.
        notes: what a reader must know (absent classes, unscored items, undefined metrics).
        items: per-item columns, each of length n, `id` among them; empty where a pool keeps none.
        forms: metrics by items, for comparisons: scores per item, or functions of item weights; they are not stored.
    """

    name: str
    metrics: Mapping[str, Value]
    n: int
    partial: bool = False
    notes: tuple[str, ...] = ()
    items: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    forms: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One model on all tasks of a pool.

    Args:
        name: the model: `base`, an expert's name, `merged`.
        role: "base", "expert" or "merged".
        tasks: results in the pool's order.
        model_info: parameter counts.
        seconds: wall time of the evaluation.
        shared_items: whether item i of every task is the same thing (the same picture seen in several ways), so that
            errors of averages over tasks count items, not answers.
        averages: averages over tasks by metric, where their errors are known better than from independent tasks.
    """

    name: str
    role: str
    tasks: tuple[TaskResult, ...]
    model_info: Mapping[str, float]
    seconds: float = 0.0
    shared_items: bool = False
    averages: Mapping[str, Value] = field(default_factory=dict)

    def average(self) -> dict[str, Value]:
        """The mean over tasks of every metric that all tasks have, with its standard error over items."""
        if self.averages or not self.tasks:
            return dict(self.averages)
        shared = [m for m in self.tasks[0].metrics if all(m in task.metrics for task in self.tasks)]
        return {metric: mean_over_tasks([task.metrics[metric] for task in self.tasks]) for metric in shared}

    def as_dict(self) -> dict[str, Any]:
        """The nested dictionary of plain numbers: `model_info`, one entry per task, `average`."""
        nested: dict[str, Any] = {"model_info": dict(self.model_info)}
        for task in self.tasks:
            nested[task.name] = {metric: value.value for metric, value in task.metrics.items()}
        nested["average"] = {metric: value.value for metric, value in self.average().items()}
        return nested


def mean_over_tasks(values: Sequence[Value], stderr: float | None = None) -> Value:
    """The unweighted mean of values with its interval, from the values' own intervals.

    The distances to the ends of independent intervals add in squares (MOVER, Zou and Donner, Stat. Med. 27 (2008)), so
    that a mean of proportions stays a proportion and has an interval where every answer is right.

    Args:
        values: one per task.
        stderr: the mean's standard error where values are not independent; the distances are scaled to it, or add up
            where the values' own errors are all zero.
    """
    count = len(values)
    mean = math.fsum(value.value for value in values) / count
    known = [value.stderr for value in values if value.stderr is not None]
    independent = math.sqrt(math.fsum(error**2 for error in known)) / count if len(known) == count else None
    scale = None if stderr is None or not independent else stderr / independent
    stderr = independent if stderr is None else stderr
    sizes = [value.n for value in values if value.n is not None]
    interval = (
        None if stderr is None else _mean_interval(values, mean, scale, dependent=scale is None and not independent)
    )
    return Value(mean, stderr, sum(sizes) if len(sizes) == count else None, values[0].higher_is_better, interval)


def _mean_interval(
    values: Sequence[Value], mean: float, scale: float | None, dependent: bool
) -> tuple[float, float] | None:
    ends = [(value.value - value.interval[0], value.interval[1] - value.value) for value in values if value.interval]
    if len(ends) < len(values):
        return None
    below, above = ([end[side] for end in ends] for side in (0, 1))
    count, factor = len(values), 1.0 if scale is None else scale
    low, high = (
        math.fsum(side) / count if dependent else factor * math.sqrt(math.fsum(end**2 for end in side)) / count
        for side in (below, above)
    )
    return mean - min(low, math.fsum(below) / count), mean + min(high, math.fsum(above) / count)
