"""What answers a judge's questions: a server, a local model, a function, a fixed text, nobody."""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusion_eval.errors import ConfigError, Fault
from fusion_eval.harness.judge.base import JudgeError
from fusion_eval.harness.judge.settings import JudgeSettings

Backend = Callable[[list[dict[str, Any]], dict[str, Any]], Any]
"""(messages, options) -> text."""

MAX_TOKENS = 1024
_OPTIONS = frozenset({
    "model", "temperature", "max_tokens", "max_completion_tokens", "top_p", "stop", "seed", "response_format",
    "presence_penalty", "frequency_penalty", "logit_bias", "reasoning_effort",
})  # fmt: skip
"""What is passed on to a server; a task's `n`, `stream` and `timeout` mean nothing to a judge that gives one text."""


def server(settings: JudgeSettings) -> Backend:
    """A model behind an OpenAI-compatible server; no key is sent where there is none now."""
    from fusion_eval.harness.engine.server import Server

    key_name = settings.key_name if settings.key_name in os.environ else ""  # what tasks see later is no key
    asked = Server(
        str(settings.url), settings.model or "", True, settings.concurrency, settings.rate, settings.retries,
        settings.timeout, key_name,
    )  # fmt: skip
    gate = threading.BoundedSemaphore(settings.concurrency)

    def answer(messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        body = {key: value for key, value in options.items() if key in _OPTIONS or key in settings.options}
        if not body.get("model"):
            raise JudgeError(Fault("judge.model", "neither the task nor the settings name one", "a served model"))
        with gate:
            found = asked.post("/chat/completions", {**body, "messages": messages})
        try:
            return str(found["choices"][0]["message"]["content"] or "")
        except (KeyError, IndexError, TypeError) as error:
            raise JudgeError(Fault(str(settings.url), f"answered {str(found)[:200]}", "a chat completion")) from error

    return answer


def local_model(folder: str) -> Backend:
    """A causal language model of transformers, loaded when it is first asked."""
    lock = threading.Lock()

    @functools.cache
    def engine() -> Any:
        import torch

        from fusion_eval.harness.engine.transformers_model import load_model

        return load_model(folder, device="cuda" if torch.cuda.is_available() else None)

    def answer(messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        settings: dict[str, Any] = {"until": [], "max_gen_toks": options.get("max_tokens") or MAX_TOKENS}
        if options.get("temperature"):
            settings.update(do_sample=True, temperature=float(options["temperature"]))
        with lock:  # one model, one question at a time
            model = engine()
            text = model.apply_chat_template([_text_only(message) for message in messages])
            prompts = model.encode_prompts([(text, settings, int(options.get("seed") or 0))])
            units = model.plan_prompts(prompts)
            return str(model.generate(units[0])[0])

    return answer


def _text_only(message: Mapping[str, Any]) -> dict[str, str]:
    content = message.get("content")
    if isinstance(content, str):
        return {"role": str(message["role"]), "content": content}
    parts: Sequence[Any] = content or ()
    others = [part.get("type") for part in parts if part.get("type") != "text"]
    if others:
        raise JudgeError(Fault("judge", f"the question shows {', '.join(map(str, others))}", "a judge that can see",
                               "Set judge.url to a server with a vision-language model."))  # fmt: skip
    return {"role": str(message["role"]), "content": "\n".join(str(part["text"]) for part in parts)}


def function_of(path: str) -> Backend:
    """A function of (messages, options), imported when it is first asked."""
    module, _, name = path.replace(":", ".").rpartition(".")

    @functools.cache
    def function() -> Backend:
        try:
            found: Backend = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            fault = Fault("judge.function", f"{path} cannot be imported: {error}", "package.module:function")
            raise ConfigError(fault) from error
        return found

    return lambda messages, options: function()(messages, options)


def dummy(answer: str) -> Backend:
    """The same text for every question."""
    return lambda messages, options: answer


def nobody(messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
    """No answer.

    Raises:
        JudgeError: always.
    """
    raise JudgeError(
        Fault("judge", "the task asks a judge, and none is set", "a judge",
              "Set judge={url: http://localhost:8000/v1, model: name}, or judge={cache: answers.jsonl, mode: replay}.")
    )  # fmt: skip
