"""What was selected: tasks, and groups of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusion_eval.errors import Fault
from fusion_eval.harness.spec import GroupSpec, TaskSpec


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """A task that will run: its name, its spec, and the values it was read from (for Python `class` tasks)."""

    name: str
    spec: TaskSpec
    values: Mapping[str, Any]


@dataclass(slots=True)
class GroupPlan:
    """A group with its members in order; a member is a task's name or another group."""

    spec: GroupSpec
    name: str
    members: list[str | GroupPlan] = field(default_factory=list)

    @property
    def alias(self) -> str:
        """The name to print."""
        return self.spec.group_alias or self.name

    def leaves(self) -> list[str]:
        """Names of all tasks below, each once, in order."""
        names: dict[str, None] = {}
        for member in self.members:
            names.update(dict.fromkeys([member] if isinstance(member, str) else member.leaves()))
        return list(names)

    def subgroups(self) -> list[GroupPlan]:
        """The groups below, innermost first."""
        found: list[GroupPlan] = []
        for member in self.members:
            if isinstance(member, GroupPlan):
                found += [*member.subgroups(), member]
        return found


@dataclass(slots=True)
class Selection:
    """What a run evaluates: tasks by name, top-level groups, remarks about odd but meaningful files."""

    tasks: dict[str, TaskPlan] = field(default_factory=dict)
    groups: list[GroupPlan] = field(default_factory=list)
    notes: list[Fault] = field(default_factory=list)

    def all_groups(self) -> list[GroupPlan]:
        """Every group, innermost first, each name once."""
        found: dict[str, GroupPlan] = {}
        for group in self.groups:
            for item in (*group.subgroups(), group):
                found.setdefault(item.name, item)
        return list(found.values())
