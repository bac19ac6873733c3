"""From the values of a task or group file to `TaskSpec` and `GroupSpec`, with every fault found at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from fusion_eval.errors import Fault, did_you_mean, listed
from fusion_eval.harness.spec import (
    DEFAULT_PIPELINE,
    FEWSHOT_KEYS,
    GROUP_KEYS,
    OUTPUT_TYPES,
    TASK_KEYS,
    FewshotSpec,
    FilterStep,
    GroupMetric,
    GroupSpec,
    MetricSpec,
    PipelineSpec,
    TaskSpec,
)
from fusion_eval.harness.yaml_file import FunctionRef

Where = Callable[[str], str]
_METRIC_KEYS = frozenset({"metric", "aggregation", "higher_is_better", "hf_evaluate"})
_STRUCTURE = frozenset({"group", "group_alias", "class", "task_list", "include"})
_STRINGS = (
    "task", "task_alias", "dataset_path", "training_split", "validation_split", "test_split", "fewshot_split",
    "use_prompt", "description", "target_delimiter", "fewshot_delimiter", "gen_prefix", "output_type",
)  # fmt: skip
_HOOKS = ("custom_dataset", "process_docs", "process_results")
_COUNTS = {"num_fewshot": 0, "repeats": 1}


class SpecReader:
    """Reads one file's values; `faults` collects what is wrong with it, `notes` what is odd but has a meaning.

    Args:
        values: merged top-level keys.
        where: key -> `file:line`.
        source: the file.
        extra_keys: keys of another dialect to keep in `TaskSpec.extra`.
    """

    def __init__(
        self, values: Mapping[str, Any], where: Where, source: Path | None = None, extra_keys: Collection[str] = ()
    ) -> None:
        self.values = dict(values)
        self.where = where
        self.source = source
        self.extra_keys = frozenset(extra_keys)
        self.faults: list[Fault] = []
        self.notes: list[Fault] = []

    def task(self) -> TaskSpec:
        """The spec; only meaningful when `faults` stays empty."""
        known = {k: v for k, v in self.values.items() if k in TASK_KEYS and v is not None}
        extra = {k: v for k, v in self.values.items() if k in self.extra_keys}
        others = {k: v for k, v in self.values.items() if k not in TASK_KEYS | _STRUCTURE | self.extra_keys}
        if "class" not in self.values:
            self._unknown(others, TASK_KEYS | self.extra_keys)
        self._check_types(known)
        fields: dict[str, Any] = dict(known)
        fields["tag"] = _names(known.get("tag"))
        fields["metadata"] = _metadata(known.get("metadata"))
        fields["dataset_kwargs"] = dict(known.get("dataset_kwargs") or {})
        fields["metric_list"] = self._metrics(known.get("metric_list"))
        fields["filter_list"] = self._pipelines(known.get("filter_list"))
        fields["fewshot_config"] = self._fewshot(known.get("fewshot_config"))
        if fields.get("dataset_name") is not None:
            fields["dataset_name"] = str(fields["dataset_name"])
        return TaskSpec(**fields, class_=self.values.get("class"), extra=extra, options=others, source=self.source)

    def group(self) -> GroupSpec:
        """The group; only meaningful when `faults` stays empty."""
        members = self.values.get("task")
        members = [members] if isinstance(members, (str, dict)) else members
        for member in members or []:
            if not isinstance(member, (str, dict)) or (
                isinstance(member, dict) and not {"task", "group"} & set(member)
            ):
                self._fault("task", f"the member {member!r}", "a name, or a mapping with 'task' or 'group'")
        self._unknown(
            {k: v for k, v in self.values.items() if k not in GROUP_KEYS | TASK_KEYS | _STRUCTURE | self.extra_keys},
            GROUP_KEYS | TASK_KEYS,
        )
        return GroupSpec(
            group=str(self.values["group"]),
            group_alias=self.values.get("group_alias"),
            members=tuple(members or ()),
            aggregate_metric_list=tuple(self._group_metrics()),
            metadata=_metadata(self.values.get("metadata")),
            overrides={k: v for k, v in self.values.items() if k not in GROUP_KEYS | {"include", "task_list", "tag"}},
            source=self.source,
        )

    def _fault(self, key: str, found: str, expected: str = "", do: str = "") -> None:
        self.faults.append(Fault(f"{self.where(key)} ({key})", found, expected, do))

    def _unknown(self, keys: Mapping[str, Any], known: Collection[str]) -> None:
        for key in keys:
            hint = did_you_mean(str(key), known)
            self._fault(str(key), "is not a key of a task file", do=hint or f"Known keys: {listed(sorted(known), 40)}.")

    def _check_types(self, known: Mapping[str, Any]) -> None:
        for key in _STRINGS:
            if key in known and not isinstance(known[key], str):
                self._fault(key, f"{known[key]!r} ({type(known[key]).__name__})", "a string", "Put it in quotes.")
        for key in _HOOKS:
            if key in known and not _is_hook(known[key]):
                self._fault(key, repr(known[key]), "a function", f"Write `{key}: !function utils.{key}`.")
        for key, least in _COUNTS.items():
            if key in known and (not isinstance(known[key], int) or known[key] < least):
                self._fault(key, repr(known[key]), f"an integer of at least {least}")
        if known.get("output_type", OUTPUT_TYPES[0]) not in OUTPUT_TYPES and not self.extra_keys:
            self._fault(
                "output_type", repr(known["output_type"]), f"one of {', '.join(OUTPUT_TYPES)}",
                did_you_mean(str(known["output_type"]), OUTPUT_TYPES),
            )  # fmt: skip
        for key in ("generation_kwargs", "dataset_kwargs"):
            if key in known and not isinstance(known[key], Mapping):
                self._fault(key, repr(known[key]), "a mapping")

    def _metrics(self, entries: Any) -> tuple[MetricSpec, ...] | None:
        if entries is None:
            return None
        found = []
        for entry in entries if isinstance(entries, list) else [entries]:
            if entry is None:
                self.notes.append(Fault(f"{self.where('metric_list')} (metric_list)", "an empty entry; it is ignored"))
                continue
            if not isinstance(entry, Mapping) or "metric" not in entry:
                self._fault("metric_list", f"the entry {entry!r}", "a mapping with the key 'metric'")
                continue
            found.append(
                MetricSpec(
                    metric=entry["metric"],
                    aggregation=entry.get("aggregation"),
                    higher_is_better=entry.get("higher_is_better"),
                    hf_evaluate=entry.get("hf_evaluate") is True,
                    options={k: v for k, v in entry.items() if k not in _METRIC_KEYS},
                )
            )
        return tuple(found)

    def _pipelines(self, entries: Any) -> tuple[PipelineSpec, ...]:
        if not entries:
            return (DEFAULT_PIPELINE,)
        found = []
        for entry in entries if isinstance(entries, list) else [entries]:
            steps = entry.get("filter") if isinstance(entry, Mapping) else None
            if not isinstance(steps, list) or "name" not in entry or not all(_is_step(step) for step in steps):
                self._fault("filter_list", f"the entry {entry!r}", "a mapping with 'name' and a list 'filter' of steps")
                continue
            found.append(
                PipelineSpec(
                    str(entry["name"]),
                    tuple(
                        FilterStep(step["function"], {k: v for k, v in step.items() if k != "function"})
                        for step in steps
                    ),
                )
            )
        self._repeated([p.name for p in found])
        return tuple(found)

    def _repeated(self, names: list[str]) -> None:
        for name in {n for n in names if names.count(n) > 1}:
            self._fault("filter_list", f"two pipelines are called '{name}'", "one name each")

    def _fewshot(self, value: Any) -> FewshotSpec:
        if value is None:
            return FewshotSpec()
        if not isinstance(value, Mapping):
            self._fault("fewshot_config", repr(value), "a mapping")
            return FewshotSpec()
        for key in value.keys() - FEWSHOT_KEYS:
            hint = did_you_mean(key, FEWSHOT_KEYS)
            self._fault("fewshot_config", f"'{key}' is not a key", f"one of {listed(sorted(FEWSHOT_KEYS), 20)}", hint)
        known = {k: v for k, v in value.items() if k in FEWSHOT_KEYS and v is not None}
        if "fewshot_indices" in known:
            known["fewshot_indices"] = tuple(known["fewshot_indices"])
        if "samples" in known and not (isinstance(known["samples"], list) or _is_hook(known["samples"])):
            self._fault("fewshot_config", f"samples is {known['samples']!r}", "a list of documents or a function")
        return FewshotSpec(**known)

    def _group_metrics(self) -> list[GroupMetric]:
        entries = self.values.get("aggregate_metric_list") or []
        found = []
        for entry in entries if isinstance(entries, list) else [entries]:
            if not isinstance(entry, Mapping) or "metric" not in entry:
                self._fault("aggregate_metric_list", f"the entry {entry!r}", "a mapping with the key 'metric'")
                continue
            unknown = entry.keys() - {"metric", "filter_list", "aggregation", "weight_by_size"}
            if unknown:
                self._fault("aggregate_metric_list", f"unknown keys {sorted(unknown)}", "metric, filter_list, "
                            "aggregation, weight_by_size")  # fmt: skip
            weight = entry.get("weight_by_size", True)
            if not isinstance(weight, bool):
                where = f"{self.where('aggregate_metric_list')} (aggregate_metric_list)"
                self.notes.append(
                    Fault(where, f"weight_by_size is {weight!r}, taken as {bool(weight)}", "true or false")
                )
            aggregation = entry.get("aggregation", "mean")
            if aggregation != "mean" and not _is_hook(aggregation):
                self._fault("aggregate_metric_list", f"aggregation is {aggregation!r}", "mean")
            pipelines = entry.get("filter_list")
            found.append(
                GroupMetric(
                    str(entry["metric"]), None if pipelines is None else _names(pipelines), aggregation, bool(weight)
                )
            )
        return found


def _is_hook(value: Any) -> bool:
    return isinstance(value, FunctionRef) or callable(value)


def _is_step(step: Any) -> bool:
    return isinstance(step, Mapping) and (isinstance(step.get("function"), str) or _is_hook(step.get("function")))


def _names(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(str(v) for v in value) if isinstance(value, (list, tuple)) else (str(value),)


def _metadata(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else {"_metadata": value}
