"""Thoughts that a model writes before its answer, and the filter that takes them away."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.filter.base import EachFilter, register_filter
from fusion_eval.harness.spec import FilterStep, PipelineSpec

DEFAULT_TAGS: Final = (("<think>", "</think>"), ("<thinking>", "</thinking>"))


def without_thoughts(text: str, tags: Sequence[Sequence[str]] = DEFAULT_TAGS) -> str:
    """The text without what stands between tags; what follows the last closing tag where none is opened."""
    for opening, closing in tags:
        while opening in text and (end := text.find(closing, text.find(opening))) >= 0:
            text = text[: text.find(opening)] + text[end + len(closing) :]
        if closing in text and opening not in text:
            text = text.rpartition(closing)[2]
    return text.strip()


@register_filter("strip_thinking")
class StripThinking(EachFilter):
    """Thoughts between tags taken away.

    Args:
        tag_pairs: (opening, closing) tags; None for those of <think> and <thinking>.
    """

    def __init__(self, tag_pairs: Sequence[Sequence[str]] | None = None) -> None:
        self.tags = tag_pairs or DEFAULT_TAGS

    def one(self, response: Any) -> Any:
        """The response without its thoughts."""
        return without_thoughts(response, self.tags) if isinstance(response, str) else response


def tags_of(extra: Mapping[str, Any], given: Any) -> list[list[str]] | None:
    """The tags whose content is taken away before filters; None for nothing.

    Args:
        extra: a task's `reasoning_tags` ("none", pairs, or pairs as JSON) and `auto_strip_thinking`.
        given: the run's own tags, which count where the task has none.
    """
    value = extra.get("reasoning_tags", given)
    if value is None and extra.get("auto_strip_thinking"):
        return [list(pair) for pair in DEFAULT_TAGS]
    if value in (None, "none", False):
        return None
    try:
        pairs = json.loads(value) if isinstance(value, str) else value
        return [[str(opening), str(closing)] for opening, closing in pairs]
    except (ValueError, TypeError) as error:
        where = "reasoning_tags"
        raise ConfigError(Fault(where, repr(value), 'pairs such as [["<think>", "</think>"]], or none')) from error


def with_stripping(pipelines: Sequence[PipelineSpec], tags: list[list[str]] | None) -> tuple[PipelineSpec, ...]:
    """Pipelines that begin by taking thoughts away."""
    if tags is None:
        return tuple(pipelines)
    step = FilterStep("strip_thinking", {"tag_pairs": tags})
    return tuple(PipelineSpec(pipeline.name, (step, *pipeline.steps)) for pipeline in pipelines)
