"""Checks of task files before anything is loaded: every file, every fault, with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusion_eval.errors import Fault, FusionEvalError, did_you_mean, listed
from fusion_eval.harness.aggregation import AGGREGATIONS, get_aggregation
from fusion_eval.harness.catalog import TaskCatalog
from fusion_eval.harness.dataset import builder_of
from fusion_eval.harness.fewshot import sampler_class
from fusion_eval.harness.filter.pipeline import build_pipeline, get_filter
from fusion_eval.harness.function import ModuleSpace
from fusion_eval.harness.metric import METRICS
from fusion_eval.harness.peer_metrics import FUNCTIONS
from fusion_eval.harness.peer_names import peer_names
from fusion_eval.harness.plan import Selection, TaskPlan
from fusion_eval.harness.spec import TaskSpec
from fusion_eval.harness.template import variables
from fusion_eval.harness.yaml_file import FunctionRef, YamlFile, function_refs

_TEMPLATES = ("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix")
_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


@dataclass(slots=True)
class Findings:
    """What a check found.

    Args:
        faults: what keeps a task from running.
        notes: what is odd but has a meaning.
        checked: how many tasks and groups were looked at.
        plans: what was read, by name of the task.
        by_name: faults of each task or group that has some.
    """

    faults: list[Fault] = field(default_factory=list)
    notes: list[Fault] = field(default_factory=list)
    checked: int = 0
    plans: dict[str, TaskPlan] = field(default_factory=dict)
    by_name: dict[str, list[Fault]] = field(default_factory=dict)

    def add(self, name: str, faults: Iterable[Fault]) -> None:
        """Note what keeps a task or group from running."""
        new = list(faults)
        if new:
            self.faults += new
            self.by_name.setdefault(name, []).extend(new)


def check(
    catalog: TaskCatalog, tasks: Iterable[str] | None = None, *, run_python: Sequence[Path] = (),
    columns: Mapping[str, Sequence[str]] | None = None, splits: Mapping[str, Sequence[str]] | None = None,
) -> Findings:  # fmt: skip
    """All faults of all named tasks (default: of all files of the catalog).

    Args:
        catalog: where the tasks are.
        tasks: names.
        run_python: folders whose Python may run, so that functions are imported too.
        columns: task -> columns of its documents, where they are known.
        splits: task -> splits of its data set, where they are known.
    """
    findings = Findings()
    names = list(tasks) if tasks is not None else [n for n, e in catalog.index.entries.items() if e.kind != "tag"]
    if tasks is None:
        findings.faults += [Fault(str(path), why) for path, why in catalog.index.unreadable]
        findings.notes += [
            Fault(str(lost), f"'{name}' is already defined in {kept}; this file is ignored")
            for name, kept, lost in catalog.index.clashes
        ]
    modules = ModuleSpace(run_python)
    with peer_names(run_python):
        for name in names:
            findings.checked += 1
            _check_name(catalog, name, modules if run_python else None, findings, columns or {}, splits or {})
    findings.faults = list(dict.fromkeys(findings.faults))
    findings.notes = list(dict.fromkeys(findings.notes))
    return findings


def _check_name(
    catalog: TaskCatalog, name: str, modules: ModuleSpace | None, findings: Findings,
    columns: Mapping[str, Sequence[str]], splits: Mapping[str, Sequence[str]],
) -> None:  # fmt: skip
    try:
        selection = catalog.select([name])
    except FusionEvalError as error:
        findings.add(name, error.faults)
        return
    findings.notes += selection.notes
    entries = catalog.index.entries
    for plan in selection.tasks.values():
        inline = plan.name not in entries  # written inside the group that is looked at
        if plan.spec.source is None or plan.name in findings.plans or not (plan.name == name or inline):
            continue
        findings.plans[plan.name] = plan
        read = catalog.read(plan.spec.source)
        findings.add(name, check_spec(plan.spec, read, columns.get(plan.name), splits.get(plan.name)))
        if modules is not None:
            findings.add(name, _check_functions(plan, modules))


def readable_faults(selection: Selection, read: Callable[[Path], YamlFile]) -> list[Fault]:
    """What is wrong with the files of a selection, found without running their Python."""
    specs = [plan.spec for plan in selection.tasks.values() if plan.spec.source is not None]
    return [fault for spec in specs if spec.source for fault in check_spec(spec, read(spec.source))]


def check_spec(
    spec: TaskSpec, read: YamlFile, columns: Sequence[str] | None = None, splits: Sequence[str] | None = None
) -> list[Fault]:
    """Faults of one task that show without running its Python."""
    if spec.class_ is not None:
        return []
    return [
        *_check_data(spec, read),
        *_check_templates(spec, read, columns),
        *_check_metrics(spec, read),
        *([] if function_refs(read.values) else _check_filters(spec, read)),
        *_check_splits(spec, read, splits),
        *(_check_dialect(spec, read) if spec.extra else []),
    ]


def _at(read: YamlFile, key: str) -> str:
    return f"{read.where(key)} ({key})"


def _check_data(spec: TaskSpec, read: YamlFile) -> list[Fault]:
    faults = []
    if spec.dataset_path is None and spec.custom_dataset is None:
        faults.append(Fault(str(read.path), f"'{spec.task}' names no data", "dataset_path or custom_dataset"))
    asks = spec.doc_to_text is not None or spec.extra.get("doc_to_messages") is not None
    if not asks and spec.use_prompt is None and spec.output_type != "loglikelihood_rolling":
        faults.append(Fault(str(read.path), f"'{spec.task}' has no doc_to_text", "a column, a template or a function"))
    if spec.output_type == "multiple_choice" and spec.doc_to_choice is None:
        faults.append(Fault(_at(read, "output_type"), "multiple_choice without doc_to_choice", "a list of choices"))
    path = spec.dataset_path or ""
    if builder_of(path) is not None and "data_files" not in spec.dataset_kwargs:
        places = (Path.cwd() / path, read.path.parent / path)
        if not any(place.exists() for place in places):
            faults.append(Fault(_at(read, "dataset_path"), f"the file {path} does not exist", str(places[-1])))
    return faults


def _check_templates(spec: TaskSpec, read: YamlFile, columns: Sequence[str] | None) -> list[Fault]:
    faults = []
    for key in _TEMPLATES:
        template = getattr(spec, key)
        if not isinstance(template, str):
            continue
        try:
            used = variables(template)
        except FusionEvalError as error:
            faults += [Fault(_at(read, key), f.found, f.expected, f.do) for f in error.faults]
            continue
        if columns is not None and spec.process_docs is None:
            for name in sorted(used - set(columns)):
                faults.append(
                    Fault(_at(read, key), f"the template uses '{name}'", f"a column: {listed(sorted(columns), 20)}",
                          did_you_mean(name, columns))
                )  # fmt: skip
    return faults


def _check_metrics(spec: TaskSpec, read: YamlFile) -> list[Fault]:
    faults = []
    for metric in spec.metric_list or ():
        own = spec.process_results is not None
        strict = spec.output_type == "generate_until" and not own
        if strict and isinstance(metric.metric, str) and metric.metric not in {*METRICS, *FUNCTIONS}:
            known = sorted({*METRICS, *FUNCTIONS})
            hint = did_you_mean(metric.metric, known) or f"Known: {listed(known, 40)}; or `!function utils.my_metric`."
            faults.append(Fault(_at(read, "metric_list"), f"no metric is called '{metric.metric}'", do=hint))
        aggregation = metric.aggregation
        if isinstance(aggregation, str) and aggregation not in AGGREGATIONS:
            try:
                get_aggregation(aggregation)
            except FusionEvalError as error:
                faults += [Fault(_at(read, "metric_list"), f.found, f.expected, f.do) for f in error.faults]
    return faults


def _check_filters(spec: TaskSpec, read: YamlFile) -> list[Fault]:
    faults = []
    for pipeline in spec.filter_list:
        try:
            for step in pipeline.steps:
                if isinstance(step.function, str):
                    get_filter(step.function)
            if not function_refs([step.function for step in pipeline.steps]):
                build_pipeline(pipeline)
        except (FusionEvalError, re.error) as error:
            found = error.faults if isinstance(error, FusionEvalError) else [Fault("", str(error))]
            faults += [Fault(_at(read, "filter_list"), f.found, f.expected, f.do) for f in found]
    return faults


def _check_splits(spec: TaskSpec, read: YamlFile, splits: Sequence[str] | None) -> list[Fault]:
    if splits is None:
        return []
    faults = []
    for key in _SPLITS:
        name = getattr(spec, key)
        if name is not None and name.split("[")[0] not in splits:
            faults.append(
                Fault(_at(read, key), f"the data set has no split '{name}'", f"one of {listed(list(splits), 20)}",
                      did_you_mean(name, splits))
            )  # fmt: skip
    return faults


def _check_dialect(spec: TaskSpec, read: YamlFile) -> list[Fault]:
    """What only multimodal files can have wrong."""
    from fusion_eval.harness.multimodal.dialect import CURRENT_KEY, EAGLE_KEY, OUTPUT_TYPES

    faults = []
    if spec.output_type not in OUTPUT_TYPES:
        hint = did_you_mean(spec.output_type, OUTPUT_TYPES)
        faults.append(
            Fault(_at(read, "output_type"), repr(spec.output_type), f"one of {listed(OUTPUT_TYPES, 9)}", hint)
        )
    blocks = (EAGLE_KEY, CURRENT_KEY, "model_specific_generation_kwargs", "model_specific_target_kwargs")
    for key in blocks:
        value = spec.extra.get(key)
        if value is not None and not isinstance(value, Mapping):
            faults.append(Fault(_at(read, key), repr(value), "a mapping from models (or default) to settings"))
    for key in ("doc_to_visual", "doc_to_messages"):
        value = spec.extra.get(key)
        if value is not None and not isinstance(value, str | FunctionRef):
            faults.append(
                Fault(_at(read, key), repr(value), "a function or a column", f"Write: {key}: !function utils.{key}")
            )
    return faults


def _check_functions(plan: TaskPlan, modules: ModuleSpace) -> list[Fault]:
    faults: list[Fault] = []
    for ref in _refs_of(plan):
        try:
            modules.function(ref)
        except FusionEvalError as error:
            faults += error.faults
    sampler: Any = plan.spec.fewshot_config.sampler
    if isinstance(sampler, str):
        try:
            sampler_class(sampler)
        except FusionEvalError as error:
            faults += error.faults
    return faults


def _refs_of(plan: TaskPlan) -> list[FunctionRef]:
    return list(dict.fromkeys(function_refs(plan.values)))
