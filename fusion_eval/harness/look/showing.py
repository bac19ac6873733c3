"""What becomes of one document: prompt, media, target, generation settings; no model is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fusion_eval.errors import ConfigError, Fault, FusionEvalError
from fusion_eval.harness.build import BuiltTask, RunOptions, build_requests
from fusion_eval.harness.dataset import DataSource
from fusion_eval.harness.look.shelf import Shelf
from fusion_eval.harness.media import Conversation, Media
from fusion_eval.harness.multimodal.suite import MultimodalSuite, make_multimodal_suite
from fusion_eval.harness.plan import Selection
from fusion_eval.harness.request import Request
from fusion_eval.harness.spec import TaskSpec
from fusion_eval.harness.suite import Suite, make_suite

_LONG: Final = 300


@dataclass(frozen=True, slots=True)
class Shown:
    """What is looked at.

    Args:
        doc: place of the document in its split, from 0.
        model: names of a model, its own first, for settings that only some models get.
        num_fewshot: shots; None for each file's own number.
        gen_kwargs: laid over the generation settings of every task.
        data: where data sets come from.
    """

    doc: int = 0
    model: tuple[str, ...] = ()
    num_fewshot: int | None = None
    gen_kwargs: Mapping[str, Any] | None = None
    data: DataSource | None = None


def shown(shelf: Shelf, tasks: Sequence[str], wanted: Shown) -> str:
    """The document of every task, as text.

    Raises:
        FusionEvalError: a task that cannot be built, or has no such document.
    """
    suite = _suite(shelf, tasks, wanted)
    parts: list[str] = []
    faults: list[Fault] = []
    for name in suite.selection.tasks:
        try:
            parts.append(_one(suite, name, wanted))
        except FusionEvalError as error:
            faults += [_about(name, wanted.doc, fault) for fault in error.faults]
    if faults:
        raise ConfigError(*faults)
    return "\n\n".join(parts)


def _about(name: str, doc: int, fault: Fault) -> Fault:
    """A fault with the task's name; of a document that is not there, as it was asked for."""
    if fault.where == f"samples.{name}":
        return Fault(f"{name}: doc", str(doc), fault.expected, fault.do)
    return fault if name in fault.where else replace(fault, where=f"{name}: {fault.where}")


def _suite(shelf: Shelf, tasks: Sequence[str], wanted: Shown) -> Suite:
    options = RunOptions(num_fewshot=wanted.num_fewshot, gen_kwargs=dict(wanted.gen_kwargs or {}))
    if shelf.dialect == "multimodal":
        return make_multimodal_suite(
            list(tasks), include_path=shelf.roots, data=wanted.data, options=options, model_names=list(wanted.model)
        )
    return make_suite(list(tasks), include_path=shelf.roots, data=wanted.data, options=options)


def _one(suite: Suite, name: str, wanted: Shown) -> str:
    if isinstance(suite, MultimodalSuite):
        with suite.names():
            task = suite.task(name)
            built = build_requests(name, task, _only(suite, name, wanted.doc))
            target = _target(built)
            told = _told_to(built.spec, task, wanted.model)
    else:
        alone = Selection({name: suite.selection.tasks[name]})
        one = Suite(alone, suite.trusted, suite.data, _only(suite, name, wanted.doc), suite.reader)
        built, told = one.build()[name], []
        target = _target(built)
    return "\n".join(
        [*_head(built, wanted.doc), *told, *_document(built), *_asked(built.requests), f"target: {target}"]
    )


def _only(suite: Suite, name: str, doc: int) -> RunOptions:
    return replace(suite.options, limit=None, samples={name: [doc]})


def _head(built: BuiltTask, doc: int) -> list[str]:
    spec = built.spec
    data = f"{spec.dataset_path or 'its own'}{f' ({spec.dataset_name})' if spec.dataset_name else ''}"
    return [
        f"task: {built.name} ({spec.output_type})",
        f"file: {spec.source or 'inline'}",
        f"data: {data}, document {doc} of {built.total}",
    ]


def _told_to(spec: TaskSpec, task: Any, model: Sequence[str]) -> list[str]:
    """What the hooks get besides the document, and for whom."""
    lines = [f"model: {', '.join(model) or 'none named, so default'}"]
    for label, value in (("prompt settings", task.prompt_kwargs), ("target settings", task.target_kwargs)):
        if value is not None:
            lines.append(f"{label}: {_plain(value)}")
    metrics = [metric.name for metric in spec.metric_list or ()]
    return [*lines, f"metrics: {', '.join(metrics)}"] if metrics else lines


def _document(built: BuiltTask) -> list[str]:
    doc = built.docs[0][1]
    if not isinstance(doc, Mapping):
        return []
    return ["document:", *(f"  {key}: {_short(value)}" for key, value in doc.items())]


def _asked(requests: Sequence[Request]) -> list[str]:
    """Prompts once each, with what is generated or scored after them."""
    lines: list[str] = []
    last: Any = None
    for request in requests:
        first, *rest = request.args
        if not lines or first != last:
            lines += _prompt(first)
            last = first
        if request.request_type == "generate_until":
            lines.append(f"generation settings: {_plain(rest[0])}")
        elif rest:
            lines.append(f"scored after it: {rest[0]!r}")
    return lines


def _prompt(asked: Any) -> list[str]:
    if not isinstance(asked, Conversation):
        return ["prompt:", *_indented(str(asked))]
    lines = [f"prompt ({len(asked.media)} media):"]
    for turn in asked.turns:
        lines.append(f"  [{turn.role}]")
        for part in turn.parts:
            lines += [f"  <{pictured(part)}>"] if isinstance(part, Media) else _indented(part)
    return lines


def pictured(media: Media) -> str:
    """A picture, video or sound in words: its size and the beginning of its digest."""
    value = media.value
    if media.kind == "image" and hasattr(value, "size"):
        about = f"{value.size[0]} x {value.size[1]} {value.mode}"
    elif isinstance(value, Mapping) and "sampling_rate" in value:
        about = f"{len(value['array']) / value['sampling_rate']:.2f} s at {value['sampling_rate']} Hz"
    elif isinstance(value, list | tuple):
        about = f"{len(value)} frames"
    else:
        about = str(value)
    return f"{media.kind} {about}, {media.digest[:12]}"


def _target(built: BuiltTask) -> str:
    return _short(built.task.doc_to_target(built.docs[0][1]))


def _indented(text: str) -> list[str]:
    return [f"  | {line}" for line in text.split("\n")]


def _short(value: Any) -> str:
    if hasattr(value, "size") and hasattr(value, "mode"):
        return f"<image {value.size[0]} x {value.size[1]} {value.mode}>"
    text = repr(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}... ({len(text)} characters)"


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
