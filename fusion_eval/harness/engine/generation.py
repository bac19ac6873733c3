"""Generation settings and stop strings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusion_eval.harness.spec import MAX_TOKENS

_LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING = frozenset({"temperature", "top_p", "top_k", "min_p"})


@dataclass(frozen=True, slots=True)
class Settings:
    """Normalised generation settings.

    Args:
        until: stop strings in order; empty ones are ignored.
        max_tokens: new tokens at most.
        sampled: whether to draw rather than take the best.
        options: temperature, top_p, top_k, min_p.
        other: whatever else the model's own `generate` takes (beams, penalties).
    """

    until: tuple[str, ...]
    max_tokens: int
    sampled: bool
    options: Mapping[str, float] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)


def normalise(given: Mapping[str, Any], default_length: int = MAX_TOKENS) -> Settings:
    """Settings from the keys of a task file; the first of the length names that is set counts."""
    rest = {key: value for key, value in given.items() if value is not None}
    until = rest.pop("until", [])
    until = [until] if isinstance(until, str) else list(until)
    lengths = [rest.pop(name) for name in _LENGTH_NAMES if name in rest]
    temperature = float(rest.pop("temperature", 0.0) or 0.0)
    sampled = bool(rest.pop("do_sample", temperature > 0.0))
    options = {name: float(rest.pop(name)) for name in sorted(_SAMPLING - {"temperature"}) if name in rest}
    if sampled:
        options["temperature"] = temperature if temperature > 0.0 else 1.0
    return Settings(
        tuple(str(stop) for stop in until), int(lengths[0]) if lengths else default_length, sampled,
        options if sampled else {}, rest,
    )  # fmt: skip


def frozen(settings: Settings) -> tuple[tuple[str, Any], ...]:
    """The settings as hashable items."""
    return (
        ("until", settings.until), ("max_tokens", settings.max_tokens), ("sampled", settings.sampled),
        ("options", tuple(sorted(settings.options.items()))),
        ("other", json.dumps(dict(settings.other), sort_keys=True, default=str)),
    )  # fmt: skip


def thawed(items: Sequence[tuple[str, Any]]) -> Settings:
    """The settings of hashable items."""
    values = dict(items)
    return Settings(
        values["until"], values["max_tokens"], values["sampled"], dict(values["options"]), json.loads(values["other"])
    )


def cut(text: str, stops: Sequence[str]) -> str:
    """The text before its stop strings: for each in order, what stands before its first occurrence."""
    for stop in stops:
        if stop:
            text = text.split(stop, 1)[0]
    return text


def safe_stops(stops: Sequence[str]) -> list[str]:
    """The stop strings at which a server may end a text: those that no stop string before them can undo.

    One that begins before the end of another, and ends after it, would decide if the text went on.
    """
    named = [stop for stop in stops if stop]
    return [
        stop for order, stop in enumerate(named) if not any(_may_decide(earlier, stop) for earlier in named[:order])
    ]


def _may_decide(earlier: str, stop: str) -> bool:
    lengths = range(1, min(len(earlier), len(stop) + 1))
    return stop in earlier[1:] or any(stop.endswith(earlier[:length]) for length in lengths)


def is_final(text: str, stops: Sequence[str]) -> bool:
    """Whether no continuation of the text can change what `cut` leaves of it.

    The first stop string (in their order) that occurs decides. Only one that stands before it in that order, and has
    begun before the end of that occurrence without being complete, could still undo it.
    """
    for order, stop in enumerate(stops):
        start = text.find(stop) if stop else -1
        if start >= 0:
            end = start + len(stop)
            return not any(_may_begin_before(earlier, text, end) for earlier in stops[:order])
    return False


def _may_begin_before(stop: str, text: str, end: int) -> bool:
    """Whether the text ends in a beginning of `stop` that starts before `end`."""
    lengths = range(max(1, len(text) - end + 1), min(len(stop), len(text) + 1))
    return any(text.endswith(stop[:length]) for length in lengths)


def without_thoughts(text: str, end_token: str | None) -> str:
    """The text after the last end-of-thinking mark."""
    return text.split(end_token)[-1].lstrip() if end_token else text
