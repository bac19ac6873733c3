"""What a task file says, typed and frozen: `TaskSpec` and its parts.

A value that the file marks with `!function` is a `FunctionRef` until `fusion_eval.harness.function` has imported it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fusion_eval.harness.yaml_file import FunctionRef

Hook = Callable[..., Any] | FunctionRef
"""A Python function of the task's folder."""

Template = str | int | list[Any] | dict[str, Any] | Callable[..., Any] | FunctionRef
"""A column name, a Jinja template, a constant, or a function of the document."""

OUTPUT_TYPES: Final = ("loglikelihood", "loglikelihood_rolling", "multiple_choice", "generate_until")
MAX_TOKENS: Final = 256


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One entry of `metric_list`.

    Args:
        metric: a registered name, or a function `(predictions, references, **options)`.
        aggregation: a registered name or a function of the list of values; None for the metric's default.
        higher_is_better: None for the metric's default.
        options: every other key of the entry; keyword arguments of the metric.
    """

    metric: str | Hook
    aggregation: str | Hook | None = None
    higher_is_better: bool | None = None
    hf_evaluate: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The key under which results appear: the registered name or the function's own."""
        if isinstance(self.metric, str):
            return self.metric
        if isinstance(self.metric, FunctionRef):
            return self.metric.name
        return str(getattr(self.metric, "__name__", type(self.metric).__name__))


@dataclass(frozen=True, slots=True)
class FilterStep:
    """One step of a filter pipeline: a registered name or a class, and its keyword arguments."""

    function: str | Hook
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """A named chain of filter steps; scoring runs once per pipeline."""

    name: str
    steps: tuple[FilterStep, ...]


@dataclass(frozen=True, slots=True)
class FewshotSpec:
    """Where the shots come from and how they read; a None inherits the task's own value."""

    sampler: str | Hook = "default"
    split: str | None = None
    process_docs: Hook | None = None
    fewshot_indices: tuple[int, ...] | None = None
    samples: Sequence[Mapping[str, Any]] | Hook | None = None
    doc_to_text: Template | None = None
    doc_to_choice: Template | None = None
    doc_to_target: Template | None = None
    gen_prefix: str | None = None
    fewshot_delimiter: str | None = None
    target_delimiter: str | None = None


DEFAULT_PIPELINE: Final = PipelineSpec("none", (FilterStep("take_first"),))


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Every key of a task file; the names are those of the files.

    Args:
        source: the file (None for a task written inline in a group or built in Python).
        extra: keys of another dialect (multimodal files), untouched.
        options: keys that only a Python `class` task reads.
    """

    task: str | None = None
    task_alias: str | None = None
    tag: tuple[str, ...] = ()
    class_: Hook | None = None
    custom_dataset: Hook | None = None
    dataset_path: str | None = None
    dataset_name: str | None = None
    dataset_kwargs: Mapping[str, Any] = field(default_factory=dict)
    training_split: str | None = None
    validation_split: str | None = None
    test_split: str | None = None
    fewshot_split: str | None = None
    process_docs: Hook | None = None
    doc_to_text: Template | None = None
    doc_to_target: Template | None = None
    doc_to_choice: Template | None = None
    doc_to_image: Template | None = None
    doc_to_audio: Template | None = None
    unsafe_code: bool = False
    process_results: Hook | None = None
    use_prompt: str | None = None
    description: str = ""
    target_delimiter: str = " "
    fewshot_delimiter: str = "\n\n"
    fewshot_config: FewshotSpec = field(default_factory=FewshotSpec)
    num_fewshot: int | None = None
    metric_list: tuple[MetricSpec, ...] | None = None
    output_type: str = "generate_until"
    generation_kwargs: Mapping[str, Any] | None = None
    repeats: int = 1
    filter_list: tuple[PipelineSpec, ...] = (DEFAULT_PIPELINE,)
    should_decontaminate: bool = False
    doc_to_decontamination_query: str | Hook | None = None
    gen_prefix: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    source: Path | None = None

    @property
    def version(self) -> Any:
        """`metadata.version`, else the word "Yaml"."""
        return self.metadata.get("version", "Yaml")

    @property
    def shots(self) -> int:
        """The number of few-shot examples."""
        return self.num_fewshot or 0

    @property
    def generation(self) -> dict[str, Any]:
        """Generation settings with `until` always there (default: the few-shot delimiter)."""
        if self.generation_kwargs is None:
            until = [self.fewshot_delimiter]
            return {"temperature": 0.0, "do_sample": False, "max_gen_toks": MAX_TOKENS, "until": until}
        settings = dict(self.generation_kwargs)
        if settings.get("temperature") is not None:
            settings["temperature"] = float(settings["temperature"])
        settings.setdefault("until", [self.fewshot_delimiter])
        return settings

    @property
    def shot(self) -> FewshotSpec:
        """The few-shot settings with everything inherited that they leave open."""
        own = self.fewshot_config
        return dataclasses.replace(
            own,
            split=own.split if own.split is not None else self.fewshot_split,
            **{
                name: _first(getattr(own, name), getattr(self, name))
                for name in (
                    "process_docs", "doc_to_text", "doc_to_choice", "doc_to_target", "gen_prefix",
                    "fewshot_delimiter", "target_delimiter",
                )
            },
        )  # fmt: skip

    @property
    def multimodal(self) -> bool:
        """True where documents carry images or sound."""
        return self.doc_to_image is not None or bool(self.doc_to_audio)

    def with_shots(self, shots: int | None) -> TaskSpec:
        """The spec with another number of shots; a file that says 0 keeps 0."""
        if shots is None or self.num_fewshot == 0:
            return self
        return dataclasses.replace(self, num_fewshot=shots)


def _first(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


@dataclass(frozen=True, slots=True)
class GroupMetric:
    """One entry of `aggregate_metric_list`.

    Args:
        filter_list: pipelines to aggregate over; None for every pipeline that the tasks have.
        weight_by_size: mean over documents rather than over tasks.
    """

    metric: str
    filter_list: tuple[str, ...] | None = None
    aggregation: str | Hook = "mean"
    weight_by_size: bool = True


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group file: its members, what to aggregate, and the keys that override every member's own."""

    group: str
    group_alias: str | None = None
    members: tuple[str | Mapping[str, Any], ...] = ()
    aggregate_metric_list: tuple[GroupMetric, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    source: Path | None = None

    @property
    def version(self) -> Any:
        """`metadata.version`, or "N/A"."""
        return self.metadata.get("version", "N/A")


TASK_KEYS: Final = frozenset(
    f.name for f in dataclasses.fields(TaskSpec) if f.name not in ("class_", "extra", "options", "source")
)
FEWSHOT_KEYS: Final = frozenset(f.name for f in dataclasses.fields(FewshotSpec))
GROUP_KEYS: Final = frozenset({"group", "group_alias", "task", "aggregate_metric_list", "metadata"})
