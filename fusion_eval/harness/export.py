"""A run as the peer's `results_*.json`, so that tools made for it can read ours."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from fusion_eval.harness.outcome import GroupOutcome, MetricValue, Outcome, TaskOutcome
from fusion_eval.harness.peer_utils import handle_non_serializable
from fusion_eval.harness.plan import GroupPlan
from fusion_eval.harness.sample_file import write_samples
from fusion_eval.harness.sample_table import write_table
from fusion_eval.harness.spec import DEFAULT_PIPELINE, FewshotSpec, PipelineSpec, TaskSpec

_MISSING = "N/A"


def results_dict(outcome: Outcome, model: str = "model") -> dict[str, Any]:
    """The dictionary of the peer's result file."""
    tasks, groups = outcome.tasks, outcome.groups
    numbers: dict[str, dict[str, Any]] = {name: _task_entry(task) for name, task in tasks.items()}
    grouped = {name: _group_entry(group, tasks) for name, group in groups.items()}
    shots = {name: task.spec.shots for name, task in tasks.items()}
    directions: dict[str, dict[str, Any]] = {name: dict(task.directions) for name, task in tasks.items()}
    for name, group in reversed(groups.items()):
        _inherit(name, group.plan, shots, directions)
    return {
        "results": {**numbers, **grouped},
        "groups": {name: entry for name, entry in grouped.items() if groups[name].plan.spec.aggregate_metric_list},
        "group_subtasks": {name: _member_names(group.plan) for name, group in groups.items()},
        "configs": {name: config_dict(task.spec) for name, task in sorted(tasks.items())},
        "versions": _versions(outcome),
        "n-shot": dict(sorted(shots.items())),
        "higher_is_better": dict(sorted(directions.items())),
        "n-samples": {name: {"original": t.total, "effective": _count(t)} for name, t in tasks.items()},
        "config": {"model": model, "limit": outcome.options.limit, "fewshot_seed": outcome.options.fewshot_seed},
    }


def _task_entry(task: TaskOutcome) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": task.name, "alias": task.alias, "sample_len": _count(task)}
    for value in task.values.values():
        entry.update(_pair(value))
    return entry


def _count(task: TaskOutcome) -> int:
    return max((value.n for value in task.values.values()), default=0)


def _pair(value: MetricValue) -> dict[str, Any]:
    error = _MISSING if value.stderr is None else value.stderr
    return {value.key: value.value, f"{value.metric}_stderr,{value.pipeline}": error}


def _group_entry(group: GroupOutcome, tasks: Mapping[str, TaskOutcome]) -> dict[str, Any]:
    entry: dict[str, Any] = {"alias": group.plan.alias, "name": group.plan.name}
    if not group.plan.spec.aggregate_metric_list:
        return entry
    entry["sample_len"] = sum(_count(tasks[name]) for name in group.plan.leaves() if name in tasks)
    for value in group.values.values():
        entry.update(_pair(value))
    if group.values:
        entry["sample_count"] = {key: value.n for key, value in group.values.items()}
    return entry


def _member_names(plan: GroupPlan) -> list[str]:
    return [member if isinstance(member, str) else member.name for member in plan.members]


def _inherit(name: str, plan: GroupPlan, shots: dict[str, int], directions: dict[str, dict[str, Any]]) -> None:
    """A group's number of shots and directions, where all its members agree."""
    members = _member_names(plan)
    found = {shots[member] for member in members if member in shots}
    if len(found) == 1:
        shots[name] = found.pop()
    own: dict[str, Any] = {}
    for member in members:
        for metric, better in directions.get(member, {}).items():
            own[metric] = better if own.get(metric, better) == better else None
    if own:
        directions[name] = own


def _versions(outcome: Outcome) -> dict[str, Any]:
    found = {name: task.version for name, task in outcome.tasks.items()}
    found.update({name: str(group.plan.spec.version) for name, group in outcome.groups.items()})
    return dict(sorted(found.items()))


def config_dict(spec: TaskSpec) -> dict[str, Any]:
    """The keys of a task as the peer dumps them: functions as their source, unset keys left out."""
    skipped = {"class_", "extra", "options", "source", "tag", "batch_size", "fewshot_config", "filter_list"}
    config = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.name not in skipped}
    if spec.metric_list is not None:
        config["metric_list"] = [
            {"metric": m.metric, "aggregation": m.aggregation, "higher_is_better": m.higher_is_better, **m.options}
            for m in spec.metric_list
        ]
    if spec.filter_list != (DEFAULT_PIPELINE,):
        config["filter_list"] = [_pipeline(pipeline) for pipeline in spec.filter_list]
    if spec.output_type == "generate_until":
        config["generation_kwargs"] = spec.generation
    config["fewshot_config"] = _fewshot(spec.shot)
    config["metadata"] = {**spec.metadata, "config_source": str(spec.source) if spec.source else "inline"}
    config["num_fewshot"] = spec.shots
    return {key: _source(value) for key, value in config.items() if value is not None and value != {}}


def _pipeline(pipeline: PipelineSpec) -> dict[str, Any]:
    return {"name": pipeline.name, "filter": [{"function": s.function, **s.options} for s in pipeline.steps]}


def _fewshot(shot: FewshotSpec) -> dict[str, Any]:
    return {f.name: getattr(shot, f.name) for f in dataclasses.fields(shot)}


def _source(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _source(item) for key, item in value.items() if key not in ("aggregation",) or item is not None}
    if isinstance(value, (list, tuple)):
        return [_source(item) for item in value]
    if not callable(value):
        return value
    try:
        return inspect.getsource(value)
    except (TypeError, OSError):
        return str(value)


def write_results(
    folder: Path, outcome: Outcome, model: str, *, samples: bool = False, date: datetime | None = None
) -> Path:
    """Write `<model>/results_<date>.json`, and the sample files beside it where `samples`."""
    when = (date or datetime.now()).isoformat().replace(":", "-")
    place = folder / "".join("_" if c in '"<>:/|?*\\[]' else c for c in model).replace("/", "__")
    place.mkdir(parents=True, exist_ok=True)
    if samples:
        for task in outcome.tasks.values():
            write_samples(place, task, when)
            write_table(place, task, when)
    path = place / f"results_{when}.json"
    temporary = path.with_suffix(".tmp")
    content = results_dict(outcome, model)
    temporary.write_text(json.dumps(content, indent=2, default=handle_non_serializable, ensure_ascii=False), "utf-8")
    temporary.replace(path)
    return path
