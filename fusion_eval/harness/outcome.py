"""What an evaluation found: values per metric, rows per document, groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusion_eval.harness.build import RunOptions
from fusion_eval.harness.plan import GroupPlan
from fusion_eval.harness.spec import TaskSpec


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One number.

    Args:
        metric: name of the metric.
        pipeline: name of the filter pipeline.
        value: the aggregated score (usually a float).
        stderr: its standard error; None where there is none.
        n: the number of documents that gave a value.
        higher_is_better: direction; None where unknown.
    """

    metric: str
    pipeline: str
    value: Any
    stderr: float | None
    n: int
    higher_is_better: bool | None = None

    @property
    def key(self) -> str:
        """`metric,pipeline`: the key of the peer's result files."""
        return f"{self.metric},{self.pipeline}"


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One document as one pipeline saw it.

    Args:
        arguments: of each request.
        resps: of each request, one per repeat.
        filtered: of each request.
        metrics: the document's values.
        marks: per request, what is noteworthy about its tokens (truncated, merged into the context, ...).
    """

    doc_id: int
    doc: Any
    target: Any
    arguments: list[tuple[Any, ...]]
    resps: list[list[Any]]
    filtered: list[Any]
    pipeline: str
    metrics: Mapping[str, Any]
    marks: tuple[str, ...] = ()


@dataclass(slots=True)
class TaskOutcome:
    """Everything about one task.

    Args:
        values: `metric,pipeline` -> value.
        rows: one per document and pipeline.
        total: documents in the data set.
        scored: documents that were scored.
        unmatched: pipeline -> responses that no filter pattern matched.
        failed: `metric,pipeline` -> why its aggregation failed.
        marks: mark -> number of requests that carry it.
        unscored: document id -> why it has no score.
        remarks: what is odd about documents -> how many.
    """

    name: str
    spec: TaskSpec
    version: Any
    values: dict[str, MetricValue] = field(default_factory=dict)
    rows: list[SampleRow] = field(default_factory=list)
    total: int = 0
    scored: int = 0
    unmatched: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    directions: Mapping[str, bool] = field(default_factory=dict)
    unscored: dict[int, str] = field(default_factory=dict)
    remarks: dict[str, int] = field(default_factory=dict)

    @property
    def alias(self) -> str:
        """The name to print."""
        return self.spec.task_alias or self.name


@dataclass(slots=True)
class GroupOutcome:
    """A group with its aggregated values."""

    plan: GroupPlan
    values: dict[str, MetricValue] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    """All tasks and groups of a run, and how it ran.

    Args:
        work: counters (tokens forwarded, requests, seconds).
    """

    tasks: dict[str, TaskOutcome]
    groups: dict[str, GroupOutcome]
    options: RunOptions
    work: dict[str, Any] = field(default_factory=dict)
