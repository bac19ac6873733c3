"""The judge that settings describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fusion_eval.errors import ConfigError
from fusion_eval.harness.judge.asked import AskedJudge
from fusion_eval.harness.judge.backends import Backend, dummy, function_of, local_model, nobody, server
from fusion_eval.harness.judge.base import Judge
from fusion_eval.harness.judge.cache import AnswerCache
from fusion_eval.harness.judge.settings import JudgeSettings, faults_of, judge_settings


def get_judge(settings: Mapping[str, Any] | JudgeSettings | Judge | Callable[..., str] | None = None) -> Judge:
    """The judge that settings describe; nothing is imported or contacted, and no key is needed, before it is asked.

    Args:
        settings: keys of `JudgeSettings`, a judge, a function of (messages, options) to a text, or None for nobody.

    Raises:
        ConfigError: unknown keys, or keys that do not fit together; all at once.
    """
    if isinstance(settings, Judge):
        return settings
    if callable(settings):
        return AskedJudge("local", lambda messages, options: str(settings(messages, options)))
    chosen = settings if isinstance(settings, JudgeSettings) else judge_settings(settings or {})
    if faults := faults_of(chosen):
        raise ConfigError(*faults)
    cache = AnswerCache(Path(chosen.cache).expanduser()) if chosen.cache is not None else None
    name = chosen.model or chosen.resolved_kind()
    return AskedJudge(
        name, backend_of(chosen), model=chosen.model, options=chosen.options, cache=cache, mode=chosen.mode,
        concurrency=chosen.concurrency,
    )  # fmt: skip


def backend_of(settings: JudgeSettings) -> Backend:
    """What answers."""
    kind = settings.resolved_kind()
    if kind == "server":
        return server(settings)
    if kind == "dummy":
        return dummy(str(settings.answer))
    if kind == "local":
        return function_of(settings.function) if settings.function else local_model(str(settings.model))
    return nobody
