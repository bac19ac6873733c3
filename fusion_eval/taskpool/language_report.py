"""From a harness outcome to the report's task results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
        if members or not group.values:
            found += [_task_result(task) for task in leaves if task.name not in {r.name for r in found}]
    found += [_task_result(task) for name, task in outcome.tasks.items() if name not in grouped]
    return found


def metric_name(value: MetricValue) -> str:
    """The metric, with its filter pipeline where the file names one."""
    return value.metric if value.pipeline == "none" else value.key


def _values(found: Mapping[str, MetricValue], notes: list[str]) -> dict[str, Value]:
    values = {}
    for value in found.values():
        name = metric_name(value)
        if not isinstance(value.value, (int, float)) or not math.isfinite(value.value):
            notes.append(f"{name} is {value.value!r}, which is no number to report")
            continue
        error = value.stderr if value.stderr is not None and math.isfinite(value.stderr) else None
        values[name] = Value(float(value.value), error, value.n, value.higher_is_better)
    return values


def _task_result(task: TaskOutcome) -> TaskResult:
    notes = [f"{key} failed: {why}" for key, why in task.failed.items()]
    for mark, count in task.marks.items():
        notes.append(f"{count} requests: {mark}")
    for pipeline, count in task.unmatched.items():
        notes.append(f"{count} responses matched nothing in the filter '{pipeline}'")
    values = _values(task.values, notes)
    sizes = {value.n for value in task.values.values()}
    if len(sizes) > 1:
        notes.append(f"metrics cover between {min(sizes)} and {max(sizes)} documents")
    return TaskResult(task.name, values, task.scored, task.scored < task.total, tuple(notes), _columns([task]))


def _group_result(group: GroupOutcome, leaves: Sequence[TaskOutcome]) -> TaskResult:
    notes = list(group.notes)
    values = _values(group.values, notes)
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
