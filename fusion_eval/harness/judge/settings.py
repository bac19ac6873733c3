"""Settings of a judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fusion_eval.errors import ConfigError, Fault, did_you_mean, listed

KINDS: Final = ("none", "server", "local", "dummy")
MODES: Final = ("ask", "replay", "refresh")


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """Which judge is asked, and how.

    Args:
        kind: none, server, local or dummy; found from the other keys where it is left out.
        url: of an OpenAI-compatible server, up to and including the version.
        model: asked in place of the model that a task names; of a local judge the folder or name of its weights.
        key_name: environment variable that holds the server's key.
        function: of a local judge, `package.module:function` of (messages, options) to a text.
        answer: of a dummy.
        cache: file of recorded answers, one JSON object a line; None keeps none.
        mode: ask (recorded answers first), replay (recorded answers only, nothing is contacted), refresh (ask anew).
        options: laid over those that a task asks with, such as {temperature: 0.0}.
        concurrency, rate, retries, timeout: see `fusion_eval.harness.engine.http.Server`.
    """

    kind: str | None = None
    url: str | None = None
    model: str | None = None
    key_name: str = "OPENAI_API_KEY"
    function: str | None = None
    answer: str | None = None
    cache: str | None = None
    mode: str = "ask"
    options: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int = 8
    rate: float | None = None
    retries: int = 5
    timeout: float = 120.0

    def resolved_kind(self) -> str:
        """The kind, found from the keys that are set where none is given."""
        if self.kind is not None:
            return self.kind
        found = {"server": self.url, "local": self.function, "dummy": self.answer}
        return next((kind for kind, value in found.items() if value is not None), "none")


def judge_settings(values: Mapping[str, Any]) -> JudgeSettings:
    """Typed settings.

    Raises:
        ConfigError: keys that are not there, with the nearest ones.
    """
    known = [item.name for item in dataclasses.fields(JudgeSettings)]
    unknown = [str(key) for key in values if key not in known]
    if unknown:
        raise ConfigError(
            *(Fault(f"judge.{key}", "no such key", f"one of {listed(known, 20)}", did_you_mean(key, known))
              for key in unknown)
        )  # fmt: skip
    return JudgeSettings(**values)


def faults_of(settings: JudgeSettings) -> list[Fault]:
    """What is wrong with settings, found before anybody is asked."""
    kind, faults = settings.resolved_kind(), []
    for key, value, choices in (("kind", kind, KINDS), ("mode", settings.mode, MODES)):
        if value not in choices:
            faults.append(Fault(f"judge.{key}", repr(value), f"one of {', '.join(choices)}"))
    if kind == "server" and settings.url is None:
        faults.append(Fault("judge.url", "not set", "the address of an OpenAI-compatible server"))
    if kind == "local" and settings.function is None and settings.model is None:
        faults.append(Fault("judge.model", "not set", "the folder of a local model, or judge.function"))
    if kind == "dummy" and not settings.answer:
        faults.append(Fault("judge.answer", repr(settings.answer), "the text that a dummy always answers"))
    if settings.mode != "ask" and settings.cache is None:
        faults.append(Fault("judge.cache", "not set", f"the file of recorded answers, for mode={settings.mode}"))
    if settings.mode == "replay" and settings.cache is not None and not Path(settings.cache).expanduser().is_file():
        faults.append(Fault("judge.cache", f"{settings.cache} does not exist", "a file of recorded answers"))
    least = {"concurrency": 1, "retries": 0}
    faults += [
        Fault(f"judge.{key}", repr(getattr(settings, key)), f"at least {low}")
        for key, low in least.items()
        if getattr(settings, key) < low
    ]
    return faults
