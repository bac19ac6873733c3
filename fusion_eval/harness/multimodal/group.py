"""Scores of groups of multimodal tasks: of metrics with one name in all tasks, weighted by documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusion_eval.harness.group import aggregate_group
from fusion_eval.harness.outcome import GroupOutcome, TaskOutcome
from fusion_eval.harness.plan import GroupPlan
from fusion_eval.harness.spec import GroupMetric

SAME = "means over all documents of"


def aggregate_same_metrics(plan: GroupPlan, tasks: Mapping[str, TaskOutcome], compat: bool = False) -> GroupOutcome:
    """The values that the group's file lists; where it lists none, of every number that all tasks give by one name.

    A mean of means counts documents; its standard error pools the tasks' own.
    """
    if plan.spec.aggregate_metric_list:
        return aggregate_group(plan, tasks, compat)
    leaves = [tasks[name] for name in plan.leaves() if name in tasks]
    if not leaves:
        return GroupOutcome(plan)
    shared = [value for key, value in leaves[0].values.items() if all(_is_number(task, key) for task in leaves)]
    wanted = tuple(GroupMetric(value.metric, (value.pipeline,)) for value in shared)
    made = replace(plan, spec=replace(plan.spec, aggregate_metric_list=wanted))
    found = aggregate_group(made, tasks, compat)
    names = ", ".join(task.name for task in leaves)
    notes = [f"{SAME} {len(leaves)} tasks: {names}"] if shared and len(leaves) > 1 else []
    return GroupOutcome(plan, found.values, [*notes, *found.notes])


def _is_number(task: TaskOutcome, key: str) -> bool:
    value = task.values.get(key)
    return value is not None and isinstance(value.value, (int, float)) and not isinstance(value.value, bool)
