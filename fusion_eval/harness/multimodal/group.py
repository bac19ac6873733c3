"""Scores of groups of multimodal tasks: of metrics with one name in all tasks, weighted by documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusion_eval.errors import listed
from fusion_eval.harness.group import aggregate_group
from fusion_eval.harness.outcome import GroupOutcome, TaskOutcome
from fusion_eval.harness.plan import GroupPlan
from fusion_eval.harness.spec import GroupMetric

SAME = "means over all documents of"
NONE = "no mean: its tasks give no numbers"


def aggregate_same_metrics(plan: GroupPlan, tasks: Mapping[str, TaskOutcome], compat: bool = False) -> GroupOutcome:
    """The values that the group's file lists; where it lists none, of every number that all tasks give by one name.

    A mean of means counts documents; its standard error pools the tasks' own. Tasks that give no number at all, such as
    those that only write a file for a server, are left out and named.
    """
    if plan.spec.aggregate_metric_list:
        return aggregate_group(plan, tasks, compat)
    members = [tasks[name] for name in plan.leaves() if name in tasks]
    leaves = [task for task in members if any(_is_number(task, key) for key in task.values)]
    if not leaves:
        return GroupOutcome(plan, notes=[NONE] if members else [])
    shared = [value for key, value in leaves[0].values.items() if all(_is_number(task, key) for task in leaves)]
    wanted = tuple(GroupMetric(value.metric, (value.pipeline,)) for value in shared)
    made = replace(plan, spec=replace(plan.spec, aggregate_metric_list=wanted))
    found = aggregate_group(made, {task.name: task for task in leaves}, compat)
    return GroupOutcome(plan, found.values, [*_notes(members, leaves, bool(shared)), *found.notes])


def _notes(members: Sequence[TaskOutcome], leaves: Sequence[TaskOutcome], shared: bool) -> list[str]:
    """What the means are of, and which tasks they leave out."""
    if not shared:
        return ["no mean: its tasks have no metric in common"]
    silent = [task.name for task in members if task not in leaves]
    notes = [f"{SAME} {len(leaves)} tasks: {listed([task.name for task in leaves])}"] if len(leaves) > 1 else []
    return [*notes, f"left out, since they give no number: {listed(silent)}"] if silent else notes


def _is_number(task: TaskOutcome, key: str) -> bool:
    value = task.values.get(key)
    return value is not None and isinstance(value.value, (int, float)) and not isinstance(value.value, bool)
