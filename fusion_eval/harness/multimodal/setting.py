"""What a run gives to every multimodal task, and what it makes of a task's spec."""

from __future__ import annotations

import dataclasses
import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.aggregation import AGGREGATIONS, get_aggregation
from fusion_eval.harness.multimodal.aggregate import arguments
from fusion_eval.harness.multimodal.dialect import IN_ROUNDS, OUTPUT_TYPES, ModelNames, Style, generation_kwargs
from fusion_eval.harness.multimodal.documents import MEMORY
from fusion_eval.harness.multimodal.rounds import AGENTIC_ROUNDS
from fusion_eval.harness.multimodal.thinking import tags_of, with_stripping
from fusion_eval.harness.spec import MetricSpec, TaskSpec

MAX_NEW_TOKENS: Final = 1024
"""Length of an answer where neither the task nor the run says one; the peers leave it to each model."""

logger = logging.getLogger(__name__)
_TEMPLATES: Final = ("doc_to_text", "doc_to_target", "doc_to_choice")
_LENGTHS = frozenset({"max_new_tokens", "max_gen_toks", "max_tokens", "max_completion_tokens"})
_REFUSED: Final = {"generate_visual_cot": "draws pictures while it thinks"}
_ADAPTERS_OWN: Final = frozenset({
    "image_aspect_ratio", "patch_size", "downsample_ratio", "min_pixels", "max_pixels", "visual_cot",
    "max_agentic_steps", "system_prompt", "seed", "skip_special_tokens", "use_cache", "modality", "modalities",
})  # fmt: skip
_PEER_DATA_KEYS: Final = frozenset({
    "video", "cache_dir", "From_YouTube", "builder_script", "force_download", "force_unzip", "local_files_only",
    "create_link", "load_from_disk", "max_retries", "num_proc",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run gives to every task.

    Args:
        names: what the model is called.
        style: whose meaning the files have; None to tell from each file and the tree around it.
        args: what aggregations get that ask for `args`.
        messages: ask by `doc_to_messages` where a task has it, else always by `doc_to_visual` and `doc_to_text`.
        max_new_tokens: of an answer where nobody says.
        gen_kwargs: laid over the generation settings of every task.
        reasoning_tags: pairs of tags whose content is taken away before filters, where the task does not say.
        num_frames: frames that a video file is shown by, at even distances; None leaves it to the processor.
        memory: bytes of pictures of one task to keep.
    """

    names: ModelNames = field(default_factory=ModelNames)
    style: Style | None = None
    args: Namespace = field(default_factory=lambda: arguments("."))
    messages: bool = True
    max_new_tokens: int = MAX_NEW_TOKENS
    gen_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reasoning_tags: Any = None
    num_frames: int | None = None
    memory: int = MEMORY


def prepared(spec: TaskSpec, setting: Setting, style: Style = "eagle") -> TaskSpec:
    """The spec as it is run: generation settings of the model, thoughts taken away, data keys that `datasets` knows.

    Templates lose a newline at their end, as both trees' Jinja takes it away; Eagle's descriptions are no templates.

    Raises:
        ConfigError: a kind of task that no engine can do.
    """
    _check(spec)
    kwargs = {k: v for k, v in spec.dataset_kwargs.items() if k not in _PEER_DATA_KEYS}
    shots = spec.fewshot_config
    return dataclasses.replace(
        spec, dataset_kwargs=kwargs, generation_kwargs=settings_of(spec, setting),
        filter_list=with_stripping(spec.filter_list, tags_of(spec.extra, setting.reasoning_tags)),
        description=_trimmed(spec.description) if style == "current" else spec.description,
        fewshot_config=dataclasses.replace(shots, **{key: _trimmed(getattr(shots, key)) for key in _TEMPLATES}),
        metric_list=spec.metric_list and tuple(_aggregated(metric, spec) for metric in spec.metric_list),
        **{key: _trimmed(getattr(spec, key)) for key in _TEMPLATES},
    )  # fmt: skip


def _trimmed(template: Any) -> Any:
    return template.removesuffix("\n").removesuffix("\r") if isinstance(template, str) else template


def _aggregated(metric: MetricSpec, spec: TaskSpec) -> MetricSpec:
    """The metric of a file's own scorer; an aggregation that nobody knows costs that metric only, if it has values."""
    name = metric.aggregation
    if spec.process_results is None or not isinstance(name, str) or name in AGGREGATIONS:
        return metric

    def unknown(items: Any) -> Any:
        return get_aggregation(name)(items)

    logger.warning("%s: no aggregation is called '%s'; %s has no value", spec.task, name, metric.name)
    return dataclasses.replace(metric, aggregation=unknown)


def settings_of(spec: TaskSpec, setting: Setting) -> dict[str, Any]:
    """Generation settings: the task's, those for the model over them, those of the run over both.

    What only adapters of the peer know (how they cut pictures, for instance) is left out. Stop strings are those that a
    file names: both peers add the delimiter between shots to every task, and their models ignore it, since answers may
    have paragraphs. With shots it stands.
    """
    settings: dict[str, Any] = {"do_sample": False, **(spec.generation_kwargs or {})}
    settings.update(generation_kwargs(spec, setting.names))
    settings.update(setting.gen_kwargs)
    settings = {key: value for key, value in settings.items() if value is not None and _counts(key, value)}
    stops = settings.pop("stop_sequences", None)
    if stops is not None:
        settings.setdefault("until", stops)
    if "temperature" in settings:
        settings["temperature"] = float(settings["temperature"])
    settings.setdefault("until", [spec.fewshot_delimiter] if spec.shots else [])
    if not _LENGTHS & settings.keys():
        settings["max_new_tokens"] = setting.max_new_tokens
    return settings


def steps_of(spec: TaskSpec) -> int | None:
    """Rounds of an agentic task; None for tasks of other kinds."""
    if spec.output_type != "generate_until_agentic":
        return None
    return int((spec.generation_kwargs or {}).get("max_agentic_steps", AGENTIC_ROUNDS))


def _counts(key: str, value: Any) -> bool:
    """Whether a setting is one of generation, rather than of an adapter of the peer, and changes anything."""
    return key not in _ADAPTERS_OWN and (key, value) not in (("num_beams", 1), ("repetition_penalty", 1.0))


def _check(spec: TaskSpec) -> None:
    where = f"{spec.source or spec.task} (output_type)"
    if spec.class_ is not None:
        raise ConfigError(
            Fault(str(spec.source), f"'{spec.task}' is a Python class of the peer", "a task described by its keys")
        )
    if spec.output_type in _REFUSED:
        raise ConfigError(
            Fault(where, f"{spec.output_type}: the model {_REFUSED[spec.output_type]}, which no engine here can do",
                  "generate_until", "Copy the file with another name and output_type: generate_until.")
        )  # fmt: skip
    if spec.output_type not in OUTPUT_TYPES:
        raise ConfigError(Fault(where, repr(spec.output_type), f"one of {', '.join(OUTPUT_TYPES)}"))
    if spec.output_type in IN_ROUNDS and isinstance(spec.doc_to_text, (str, int)):
        raise ConfigError(
            Fault(where, f"{spec.output_type} with the template {spec.doc_to_text!r} as doc_to_text",
                  "a function that makes each round's question", "Write doc_to_text: !function utils.text.")
        )  # fmt: skip
    if spec.use_prompt is not None:
        raise ConfigError(Fault(str(spec.source), f"use_prompt is {spec.use_prompt!r}", "doc_to_text and so on"))
