"""From a harness outcome to the report's task results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusion_eval.harness.multimodal.aggregate import numbers_of
from fusion_eval.harness.outcome import GroupOutcome, MetricValue, Outcome, TaskOutcome
from fusion_eval.report.values import TaskResult, Value


def task_results(outcome: Outcome, members: bool = False) -> list[TaskResult]:
    """One result per task or group that was asked for; with `members`, the tasks of groups follow their group.

    A group that aggregates nothing is replaced by its tasks.
    """
    grouped = {name for group in outcome.groups.values() for name in group.plan.leaves()}
    inner = {sub.name for group in outcome.groups.values() for sub in group.plan.subgroups()}
    found: list[TaskResult] = []
    for name, group in outcome.groups.items():
        if name in inner and not members:
            continue
        leaves = [outcome.tasks[leaf] for leaf in group.plan.leaves() if leaf in outcome.tasks]
        if not leaves:
            continue
        if group.values:
            found.append(_group_result(group, leaves))
        if members or not group.values or _leaves_out(group, leaves):
            found += [_task_result(task) for task in leaves if task.name not in {r.name for r in found}]
    found += [_task_result(task) for name, task in outcome.tasks.items() if name not in grouped]
    return found


def _leaves_out(group: GroupOutcome, leaves: Sequence[TaskOutcome]) -> bool:
    """Whether a group whose file lists no metrics says less than its tasks do."""
    return not group.plan.spec.aggregate_metric_list and any(
        key not in group.values for task in leaves for key in task.values
    )


def metric_name(value: MetricValue) -> str:
    """The metric, with its filter pipeline where the file names one."""
    return value.metric if value.pipeline == "none" else value.key


def _values(found: Mapping[str, MetricValue], notes: list[str]) -> dict[str, Value]:
    values = {}
    for value in found.values():
        name = metric_name(value)
        if value.value is None:
            notes.append(f"{name} has no number: its aggregation gave nothing back, as those do that write files")
            continue
        error = value.stderr if value.stderr is not None and math.isfinite(value.stderr) else None
        for part, number in (numbers_of(name, value.value) or {}).items():
            if math.isfinite(number):
                values[part] = Value(number, error, value.n, value.higher_is_better)
            else:
                notes.append(f"{part} is {number}, which is no number to report")
        if numbers_of(name, value.value) is None:
            notes.append(f"{name} is {_short(value.value)}, which is no number to report")
    return values


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


def _unscored(tasks: Sequence[TaskOutcome], values: dict[str, Value]) -> list[str]:
    """Count the documents without a score among the metrics, and say why the first has none."""
    count = sum(len(task.unscored) for task in tasks)
    if not count:
        return []
    asked = sum(task.scored for task in tasks)
    values["unscored"] = Value(float(count), None, asked, None)
    first = next(why for task in tasks for why in task.unscored.values())
    return [f"{count} of {asked} documents have no score; the first: {first}"]


def _counted(tasks: Sequence[TaskOutcome]) -> list[str]:
    """What is noteworthy about requests, responses and documents, each with its number."""
    counts: Counter[str] = Counter()
    for task in tasks:
        counts.update({f"requests: {mark}": count for mark, count in task.marks.items()})
        counts.update({f"documents: {remark}": count for remark, count in task.remarks.items()})
        for pipeline, count in task.unmatched.items():
            counts[f"responses matched nothing in the filter '{pipeline}'"] += count
    return [f"{count} {what}" for what, count in counts.items()]


def _task_result(task: TaskOutcome) -> TaskResult:
    notes = [f"{key} failed: {why}" for key, why in task.failed.items()] + _counted([task])
    values = _values(task.values, notes)
    notes += _unscored([task], values)
    sizes = {value.n for value in task.values.values()}
    if len(sizes) > 1:
        notes.append(f"metrics cover between {min(sizes)} and {max(sizes)} documents")
    return TaskResult(task.name, values, task.scored, task.scored < task.total, tuple(notes), _columns([task]))


def _group_result(group: GroupOutcome, leaves: Sequence[TaskOutcome]) -> TaskResult:
    notes = list(group.notes)
    values = _values(group.values, notes)
    notes += _unscored(leaves, values) + _counted(leaves)
    scored = sum(task.scored for task in leaves)
    partial = any(task.scored < task.total for task in leaves)
    failed = [f"{task.name}: {key} failed: {why}" for task in leaves for key, why in task.failed.items()]
    return TaskResult(group.plan.name, values, scored, partial, tuple([*notes, *failed]), _columns(leaves))


def _columns(tasks: Sequence[TaskOutcome]) -> dict[str, Any]:
    """Per-document columns: `id`, and every metric that is one number for each document of all tasks."""
    ids: list[str] = []
    rows: list[dict[str, float]] = []
    for task in tasks:
        merged: dict[int, dict[str, float]] = {}
        for row in task.rows:
            own = merged.setdefault(row.doc_id, {})
            for metric, value in row.metrics.items():
                if isinstance(value, (int, float, np.number)):
                    own[metric if row.pipeline == "none" else f"{metric},{row.pipeline}"] = float(value)
        ids += [str(doc) if len(tasks) == 1 else f"{task.name}:{doc}" for doc in merged]
        rows += list(merged.values())
    if not rows:
        return {}
    shared = [name for name in rows[0] if all(name in row for row in rows)]
    return {"id": np.array(ids), **{name: np.array([row[name] for row in rows]) for name in shared}}
