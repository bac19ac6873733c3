"""From documents to candidates: prompts for the language engine, stops, samples, filling in, chat."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fusion_eval.errors import ConfigError, DataError, Fault
from fusion_eval.harness.code.execution import ExecutionTask
from fusion_eval.harness.code.generations import Sample
from fusion_eval.harness.code.source import window
from fusion_eval.harness.code.task import Task
from fusion_eval.harness.request import Request

# (prefix, suffix, middle) marks of models that fill in; the first family whose marks the tokenizer has is used.
FIM_MARKS = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
Template = Callable[[Sequence[dict[str, str]]], str]


@dataclass(frozen=True, slots=True)
class Options:
    """How candidates are generated.

    Args:
        n_samples: candidates of each problem.
        temperature: of the sampler; 0 takes the most likely token.
        top_p: nucleus.
        top_k: how many of the most likely tokens, 0 for all.
        max_new_tokens: length of a candidate.
        max_length_generation: length of prompt and candidate together, as BigCode counts; None for no such bound.
        limit: how many problems.
        limit_start: the first of them.
        prefix: text before every prompt.
        instruction_tokens: what stands before the user's turn, after it, and before the assistant's.
        postprocess: cut generations as the task says.
        seed: of the sampler; sample k of a problem draws with seed + k.
    """

    n_samples: int = 1
    temperature: float = 0.2
    top_p: float = 0.95
    top_k: int = 0
    max_new_tokens: int = 512
    max_length_generation: int | None = None
    limit: int | None = None
    limit_start: int = 0
    prefix: str = ""
    instruction_tokens: tuple[str, str, str] | None = None
    postprocess: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        faults = []
        for name, least in (
            ("n_samples", 1),
            ("max_new_tokens", 1),
            ("limit_start", 0),
            ("temperature", 0),
            ("top_k", 0),
        ):
            if getattr(self, name) < least:
                faults.append(Fault(name, f"{getattr(self, name)}", f"at least {least}"))
        if not 0 < self.top_p <= 1:
            faults.append(Fault("top_p", f"{self.top_p}", "above 0, at most 1"))
        if self.instruction_tokens is not None and len(self.instruction_tokens) != 3:
            expected = "three: before the user's turn, after it, before the assistant's"
            faults.append(Fault("instruction_tokens", f"{len(self.instruction_tokens)} of them", expected))
        if self.n_samples > 1 and self.temperature == 0:
            found = f"{self.n_samples} samples at temperature 0"
            faults.append(Fault("n_samples", found, "1, or a temperature: all samples would be the same"))
        if faults:
            raise ConfigError(*faults)

    def digest(self, model: str) -> str:
        """A digest of all that decides a candidate, except how many are asked for."""
        kept = {k: v for k, v in asdict(self).items() if k not in ("n_samples", "limit", "limit_start")}
        return hashlib.blake2b(json.dumps([model, kept]).encode(), digest_size=12).hexdigest()


def fim_marks(tokenizer: Any) -> tuple[str, str, str]:
    """The marks for filling in that a tokenizer has; raises ConfigError."""
    vocabulary = tokenizer.get_vocab()
    for marks in FIM_MARKS:
        if all(mark in vocabulary for mark in marks):
            return marks
    raise ConfigError(
        Fault("tokenizer", "has no marks for filling in", " or ".join(marks[0] for marks in FIM_MARKS),
              "Use a model that was trained to fill in.")
    )  # fmt: skip


def as_text(
    prompt: str | Mapping[str, str], options: Options, tokenizer: Any = None, template: Template | None = None
) -> str:
    """What the model reads.

    Args:
        prompt: a text, {"prefix", "suffix"}, or {"instruction", "context"}.
        options: prefix and instruction tokens.
        tokenizer: for the marks of filling in.
        template: the tokenizer's chat template; None to use the instruction tokens.
    """
    if isinstance(prompt, str):
        if template is None:
            return options.prefix + prompt
        return options.prefix + template([{"role": "user", "content": prompt}])
    if {"prefix", "suffix"} <= set(prompt):
        before, after, middle = fim_marks(tokenizer)
        return f"{options.prefix}{before}{prompt['prefix']}{after}{prompt['suffix']}{middle}"
    if {"instruction", "context"} <= set(prompt):
        if template is not None:
            return options.prefix + template([{"role": "user", "content": prompt["instruction"]}]) + prompt["context"]
        user, end, assistant = options.instruction_tokens or ("", "", "\n")
        return f"{options.prefix}{user}{prompt['instruction']}{end}{assistant}{prompt['context']}"
    raise DataError(
        Fault(
            "get_prompt", f"a mapping with {', '.join(prompt)}", "a text, prefix and suffix, or instruction and context"
        )
    )


def stops(task: Task, doc: Any, options: Options) -> list[str]:
    """The stop words of a document: the task's, the document's own, and the marks of a next turn."""
    own = doc.get("stop_tokens", ()) if isinstance(doc, Mapping) else ()
    turns = [token for token in options.instruction_tokens or () if token.strip()]
    return list(dict.fromkeys([*task.stop_words, *own, *turns]))


def requests(
    name: str, task: Task, options: Options, *, tokenizer: Any = None, template: Template | None = None
) -> list[Request]:
    """One request for each problem of the window, repeated for its samples.

    Raises:
        DataError: a prompt that leaves no room within max_length_generation.
    """
    found = []
    for place, doc in enumerate(window(task.get_dataset(), options.limit, options.limit_start), options.limit_start):
        text = as_text(task.get_prompt(doc), options, tokenizer, template)
        settings = _settings(task, doc, options, _room(name, place, text, options, tokenizer, task))
        found.append(Request("generate_until", doc, (text, settings), 0, (name, place, options.n_samples)))
    return found


def _room(name: str, place: int, text: str, options: Options, tokenizer: Any, task: Task) -> int:
    """New tokens for a prompt: what is left of the whole length, and in a repair a multiple of what is repaired."""
    multiple = float(getattr(task, "max_length_multiplier", None) or 0)
    if tokenizer is None or (options.max_length_generation is None and not multiple):
        return options.max_new_tokens
    used = len(tokenizer(text)["input_ids"])
    rooms = [options.max_new_tokens]
    if options.max_length_generation is not None:
        rooms.append(options.max_length_generation - used)
    if multiple:
        rooms.append(max(1, math.ceil((multiple - 1) * used)))
    if min(rooms) < 1:
        where, expected = f"task '{name}', problem {place}", f"fewer than {options.max_length_generation}"
        do = "Raise max_length_generation, or set max_new_tokens only."
        raise DataError(Fault(where, f"a prompt of {used} tokens", expected, do))
    return min(rooms)


def _settings(task: Task, doc: Any, options: Options, room: int) -> dict[str, Any]:
    settings: dict[str, Any] = {"until": stops(task, doc, options), "max_new_tokens": room}
    if options.temperature > 0:
        settings |= {"do_sample": True, "temperature": options.temperature, "top_p": options.top_p}
        if options.top_k:
            settings["top_k"] = options.top_k
    return settings


def candidates(name: str, task: Task, answered: Sequence[Request], options: Options, settings: str) -> list[Sample]:
    """The samples of answered requests, each with prompt and completion as text and the candidate to score."""
    found = []
    for request in answered:
        place = int(request.doc_id or 0)
        prompt = task.get_prompt(request.doc)
        identity = task.identity(request.doc, place) if isinstance(task, ExecutionTask) else str(place)
        for index, completion in enumerate(request.resps):
            text = _joined(prompt, completion)
            candidate = task.postprocess_generation(text, place) if options.postprocess else text
            found.append(Sample(name, identity, index, text, candidate, settings=settings))
    return found


def _joined(prompt: str | Mapping[str, str], completion: str) -> str:
    """Prompt and completion as tasks expect them: of a mapping, what the answer continues."""
    if isinstance(prompt, str):
        return prompt + completion
    return str(prompt.get("context", "")) + completion
